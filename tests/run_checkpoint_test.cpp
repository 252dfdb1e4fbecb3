// Checkpoints, and saving them over storage that fails.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cmath>
#include <map>

#include "run/checkpoint.h"
#include "saturate/safetensors.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/thread_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

Checkpoint sample_checkpoint(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.position = {step, 2, 3, 456, 7.5};
  checkpoint.epoch_metrics = {75, 1.25, {{"accuracy", 0.5}}};
  checkpoint.evaluation = Evaluation{4,
                                     {50, std::nan(""), {{"accuracy", 0.25}, {"accuracy5", 0.75}}},
                                     Metrics{50, 2, {{"accuracy", 0.125}, {"accuracy5", 1}}}};
  checkpoint.best.best = 0.1;
  checkpoint.best.best_step = 4;
  checkpoint.best.waited = 1;
  checkpoint.recipe_toml = "[data]\nsource = \"synth:\"\n";
  checkpoint.classes = {"cat", "d\"o\"g \xc3\xa9"};
  checkpoint.image_size = 32;
  // A wide type after a narrow one: the file stores them in another order.
  checkpoint.model = {{"weight", at::arange(12, at::kFloat).reshape({3, 4})},
                      {"count", at::full({}, step, at::kLong)}};
  checkpoint.optimizer = {{"weight.momentum", at::full({3, 4}, 0.5)}};
  checkpoint.average = {{"weight", at::full({3, 4}, 0.75)}};
  checkpoint.random = {{"cpu", at::arange(5, at::kByte)}};
  return checkpoint;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  const TempDir dir;
  Checkpoint written = sample_checkpoint(5);
  written.branch = 3;
  written.final_weights = true;
  write_checkpoint(Env::posix(), dir / "c.safetensors", written);
  const Checkpoint read = read_checkpoint(Env::posix(), dir / "c.safetensors");
  EXPECT_EQ(read.position.step, 5);
  EXPECT_EQ(read.position.epoch, 2);
  EXPECT_EQ(read.position.batch, 3);
  EXPECT_EQ(read.position.samples, 456);
  EXPECT_EQ(read.position.time_s, 7.5);
  EXPECT_EQ(read.branch, 3);
  EXPECT_TRUE(read.final_weights);
  EXPECT_EQ(read_checkpoint_state(Env::posix(), dir / "c.safetensors").classes, written.classes);
  EXPECT_EQ(read.epoch_metrics.samples, 75);
  EXPECT_EQ(read.epoch_metrics.loss, 1.25);
  EXPECT_FALSE(read.epoch_metrics.value("accuracy5"));
  ASSERT_TRUE(read.evaluation && read.evaluation->plain);
  EXPECT_EQ(read.evaluation->step, 4);
  EXPECT_TRUE(std::isnan(read.evaluation->metrics.loss));
  EXPECT_EQ(read.evaluation->metrics.value("accuracy5"), 0.75);
  EXPECT_EQ(read.evaluation->plain->value("accuracy"), 0.125);
  EXPECT_EQ(read.best.best, 0.1);
  EXPECT_EQ(read.best.best_step, 4);
  EXPECT_EQ(read.best.waited, 1);
  EXPECT_EQ(read.recipe_toml, written.recipe_toml);
  EXPECT_EQ(read.classes, written.classes);
  EXPECT_EQ(read.image_size, 32);
  ASSERT_EQ(read.model.size(), 2u);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : read.model) tensors[name] = tensor;
  EXPECT_TRUE(tensors["weight"].equal(written.model[0].tensor));
  EXPECT_EQ(tensors["count"].item<int64_t>(), 5);
  ASSERT_EQ(read.optimizer.size(), 1u);
  EXPECT_EQ(read.optimizer[0].name, "weight.momentum");
  ASSERT_EQ(read.average.size(), 1u);
  EXPECT_TRUE(read.average[0].tensor.equal(written.average[0].tensor));
  ASSERT_EQ(read.random.size(), 1u);
  EXPECT_TRUE(read.random[0].tensor.equal(written.random[0].tensor));
}

// A sum may be NaN or infinite, and a task need not name metrics.
TEST(Checkpoint, ReadsBackMetricsOfAnyTask) {
  const TempDir dir;
  Checkpoint written = sample_checkpoint(5);
  written.epoch_metrics = {.samples = 75, .loss = 2};
  Metrics& metrics = written.evaluation->metrics;
  metrics = {.samples = 9, .values = {{"r2", std::nan("")}, {"iou", 0.5}}};
  metrics.totals = {9, std::nan(""), HUGE_VAL, 0.1};
  written.evaluation->plain.reset();
  write_checkpoint(Env::posix(), dir / "c.safetensors", written);
  const Checkpoint read = read_checkpoint(Env::posix(), dir / "c.safetensors");
  EXPECT_TRUE(read.epoch_metrics.values.empty());
  const Metrics& found = read.evaluation->metrics;
  ASSERT_EQ(found.values.size(), 2u);
  EXPECT_TRUE(std::isnan(*found.value("r2")));
  EXPECT_EQ(found.value("iou"), 0.5);
  ASSERT_EQ(found.totals.size(), 4u);
  EXPECT_EQ(found.totals[0], 9);
  EXPECT_TRUE(std::isnan(found.totals[1]));
  EXPECT_FALSE(std::isfinite(found.totals[2]));
  EXPECT_EQ(found.totals[3], 0.1);
}

// Copying such a value would overflow the stack.
TEST(Checkpoint, DeeplyNestedMetadataAreDamage) {
  const TempDir dir;
  const std::string path = dir / "c.safetensors", key = "\"epoch_metrics\":{";
  write_checkpoint(Env::posix(), path, sample_checkpoint(5));
  SafetensorsFile file = read_safetensors(Env::posix(), path);
  std::string& state = file.metadata["state"];
  ASSERT_NE(state.find(key), state.npos);
  constexpr size_t kDeep = 1'000'000;
  state.insert(state.find(key) + key.size(),
               "\"totals\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + ",");
  write_safetensors(Env::posix(), path, file.tensors, file.metadata);
  const Error error = error_of([&] { read_checkpoint_state(Env::posix(), path); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.reason(), "the checkpoint's metadata is damaged");
}

TEST(Checkpoint, AFlippedByteAndATruncationAreDetected) {
  const TempDir dir;
  const std::string path = dir / "c.safetensors";
  write_checkpoint(Env::posix(), path, sample_checkpoint(5));
  const std::string good = testing::read_text(path);
  const size_t data_bytes = 3 * 12 * sizeof(float) + sizeof(int64_t) + 5;
  for (size_t at = good.size() - data_bytes; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 0x10;
    testing::write_file(path, bad);
    EXPECT_EQ(error_of([&] { read_checkpoint(Env::posix(), path); }).exit_code(), 4) << at;
  }
  for (size_t size = 0; size < good.size(); size += 7) {
    testing::write_file(path, good.substr(0, size));
    const Error error = error_of([&] { read_checkpoint(Env::posix(), path); });
    EXPECT_EQ(error.exit_code(), 4) << size;
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
  }
}

TEST(Checkpoint, AFailedWriteKeepsOlderOnesAndLeavesNoPartialFile) {
  const TempDir dir;
  for (FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kClose, FileOp::kRename,
                    FileOp::kSyncDirectory}) {
    const std::string folder = dir / ("op" + std::to_string(int(op)));
    FaultEnv env(Env::posix());
    CheckpointStore store(env, folder, CheckpointOptions{});
    store.save(sample_checkpoint(1));
    const uint64_t operations = env.count({op, ""});  // of one save
    for (uint64_t nth = 0; nth < operations; ++nth) {
      Fault fault;
      fault.match = {op, folder};
      fault.skip = nth;
      fault.times = 1;
      fault.written = 10;
      env.inject(fault);
      const Error error = error_of([&] { store.save(sample_checkpoint(2)); });
      env.clear();
      EXPECT_EQ(error.exit_code(), 4);
      const Checkpoint found = find_checkpoint(env, folder, [](const std::string&) { FAIL(); });
      // After the rename the new one is complete; only its safety in a power cut is unknown.
      EXPECT_EQ(found.position.step, op == FileOp::kSyncDirectory ? 2 : 1);
      for (const auto& entry : env.list(folder))
        EXPECT_TRUE(entry.name.ends_with(".safetensors")) << entry.name;
    }
  }
}

TEST(Checkpoint, APartialFileOfAKilledProcessIsRemoved) {
  const TempDir dir;
  testing::write_file(dir / "step-00000007.safetensors.tmp-123", "half");
  testing::write_file(dir / "branches.json.tmp-123", "half");
  testing::write_file(dir / "notes.txt", "mine");
  const CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  const auto left = Env::posix().list(dir.path());
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].name, "notes.txt");
}

TEST(Checkpoint, TheBestIsKeptBesideTheNewest) {
  const TempDir dir;
  for (const bool keep_best : {false, true}) {
    const std::string folder = dir / (keep_best ? "kept" : "not");
    CheckpointStore store(Env::posix(), folder,
                          CheckpointOptions{.keep = 2, .keep_best = keep_best});
    for (int64_t step = 1; step <= 9; ++step) store.save(sample_checkpoint(step));
    EXPECT_EQ(list_checkpoints(Env::posix(), folder).size(), keep_best ? 3u : 2u);
    EXPECT_EQ(Env::posix().exists(store.path_of(4)), keep_best);
  }
}

TEST(Checkpoint, ABrokenFileDoesNotCountTowardsTheKeptOnes) {
  const TempDir dir;
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{.keep = 2, .keep_best = false});
  store.save(sample_checkpoint(1));
  store.save(sample_checkpoint(2));
  const std::string second = testing::read_text(store.path_of(2));
  for (const std::string& broken : {std::string(), second.substr(0, second.size() - 1),
                                    std::string("garbage instead of a header")}) {
    testing::write_file(store.path_of(2), broken);
    store.save(sample_checkpoint(3));
    EXPECT_EQ(list_checkpoints(Env::posix(), dir.path()),
              (std::vector<std::string>{store.path_of(3), store.path_of(2), store.path_of(1)}));
  }
  store.save(sample_checkpoint(4));
  EXPECT_EQ(list_checkpoints(Env::posix(), dir.path()),
            (std::vector<std::string>{store.path_of(4), store.path_of(3)}))
      << "older than two good ones, the broken one is removed too";
}

TEST(Checkpoint, AFileWithoutReadPermissionIsNamed) {
  const TempDir dir;
  const std::string path = dir / "c.safetensors";
  write_checkpoint(Env::posix(), path, sample_checkpoint(5));
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kOpen, "c.safetensors"};
  fault.error = EACCES;
  env.inject(fault);
  const Error error = error_of([&] { read_checkpoint(env, path); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(std::string(error.what()).find("Permission denied (" + path + ")"), std::string::npos)
      << error.what();
}

// An Env whose delayed writes wait until they are released.
struct HeldEnv : FaultEnv {
  using FaultEnv::FaultEnv;
  void sleep_ns(int64_t ns) override {
    held.wait(true);
    FaultEnv::sleep_ns(ns);
  }
  void release_writes() {
    held = false;
    held.notify_all();
  }
  std::atomic<bool> held{false};
};

TEST(CheckpointWriter, SavesTheStateAtTheTimeOfTheRequest) {
  const TempDir dir;
  HeldEnv env(Env::posix());
  env.delay({FileOp::kWrite, ""}, 20'000'000, 20'000'000);
  CheckpointStore store(env, dir.path(), CheckpointOptions{});
  CheckpointWriter writer(env, store);
  EXPECT_FALSE(writer.poll() || writer.wait());
  for (int64_t step : {5, 6}) {
    Checkpoint checkpoint = sample_checkpoint(step);
    env.held = true;
    writer.start(checkpoint);
    EXPECT_TRUE(writer.busy());
    checkpoint.model[0].tensor.fill_(-1);  // training continues
    env.release_writes();
    const auto outcome = writer.wait();
    ASSERT_TRUE(outcome && !outcome->error);
    EXPECT_EQ(outcome->step, step);
    EXPECT_GE(outcome->seconds, 0.02);
    const Checkpoint read = read_checkpoint(env, outcome->path);
    int weights = 0;
    for (const auto& [name, tensor] : read.model) {
      if (name != "weight") continue;
      ++weights;
      EXPECT_TRUE(tensor.equal(sample_checkpoint(step).model[0].tensor));
    }
    EXPECT_EQ(weights, 1);
    EXPECT_FALSE(writer.busy() || writer.wait());
  }
}

TEST(CheckpointWriter, SavesFiltersOfAnyLayoutAndType) {
  const TempDir dir;
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  CheckpointWriter writer(Env::posix(), store);
  Checkpoint checkpoint = sample_checkpoint(5);
  checkpoint.model.clear();
  const at::Tensor filter = at::arange(5 * 7 * 3 * 2).reshape({5, 7, 3, 2});
  for (const auto type : {at::kFloat, at::kHalf, at::kDouble})
    checkpoint.model.push_back(
        {c10::toString(type), filter.to(type).contiguous(at::MemoryFormat::ChannelsLast)});
  checkpoint.model.push_back({"permuted", filter.permute({3, 1, 0, 2})});
  writer.start(checkpoint);
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome && !outcome->error);
  std::map<std::string, at::Tensor> read;
  for (const auto& [name, tensor] : read_checkpoint(Env::posix(), outcome->path).model)
    read[name] = tensor;
  ASSERT_EQ(read.size(), 4u);
  for (const auto& [name, tensor] : checkpoint.model) EXPECT_TRUE(read[name].equal(tensor)) << name;
}

// At the limit of threads a save takes the run's own time.
TEST(CheckpointWriter, WithoutAnotherThreadTheCallersWrites) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  CheckpointStore store(env, dir.path(), CheckpointOptions{});
  CheckpointWriter writer(env, store);
  const testing::NoMoreThreads none;
  writer.start(sample_checkpoint(5));
  EXPECT_FALSE(writer.busy());
  auto outcome = writer.poll();
  ASSERT_TRUE(outcome && !outcome->error);
  EXPECT_EQ(read_checkpoint(env, outcome->path).position.step, 5);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER) << "which the thread of a save leaves";
  Fault fault;
  fault.match = {FileOp::kSync, "step-"};
  env.inject(fault);
  writer.start(sample_checkpoint(6));
  outcome = writer.wait();
  EXPECT_TRUE(outcome && outcome->error);
}

TEST(CheckpointWriter, ReportsAFailureAndCanRetry) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  CheckpointStore store(env, dir.path(), CheckpointOptions{});
  CheckpointWriter writer(env, store);
  Fault fault;
  fault.match = {FileOp::kSync, "step-"};
  env.inject(fault);
  writer.start(sample_checkpoint(5));
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->error);
  EXPECT_TRUE(list_checkpoints(env, dir.path()).empty());
  env.clear();
  writer.restart();
  EXPECT_EQ(read_checkpoint(env, writer.wait()->path).position.step, 5);
}

}  // namespace
}  // namespace saturate
