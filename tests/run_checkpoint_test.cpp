// Checkpoints and whole runs over storage that fails.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <map>

#include "saturate/checkpoint.h"
#include "saturate/fault_env.h"
#include "saturate/trainer.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

Checkpoint sample_checkpoint(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.position = {step, 2, 3, 456, 7.5};
  checkpoint.recipe_toml = "[data]\nsource = \"synth:\"\n";
  checkpoint.classes = {"cat", "d\"o\"g \xc3\xa9"};
  checkpoint.image_size = 32;
  // A wide type after a narrow one: the file stores them in another order.
  checkpoint.model = {{"weight", at::arange(12, at::kFloat).reshape({3, 4})},
                      {"count", at::full({}, step, at::kLong)}};
  checkpoint.optimizer = {{"weight.momentum", at::full({3, 4}, 0.5)}};
  return checkpoint;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  const TempDir dir;
  const Checkpoint written = sample_checkpoint(5);
  write_checkpoint(Env::posix(), dir / "c.safetensors", written);
  const Checkpoint read = read_checkpoint(Env::posix(), dir / "c.safetensors");
  EXPECT_EQ(read.position.step, 5);
  EXPECT_EQ(read.position.epoch, 2);
  EXPECT_EQ(read.position.batch, 3);
  EXPECT_EQ(read.position.samples, 456);
  EXPECT_EQ(read.position.time_s, 7.5);
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
}

TEST(Checkpoint, AFlippedByteOfDataAndACutAreNoticed) {
  const TempDir dir;
  const std::string path = dir / "c.safetensors";
  write_checkpoint(Env::posix(), path, sample_checkpoint(5));
  const std::string good = testing::read_text(path);
  const size_t data_bytes = 2 * 12 * sizeof(float) + sizeof(int64_t);
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

TEST(Checkpoint, AFailedWriteLeavesTheOlderOnesAndNoRemains) {
  const TempDir dir;
  for (FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kClose, FileOp::kRename,
                    FileOp::kSyncDirectory}) {
    const std::string folder = dir / ("op" + std::to_string(int(op)));
    FaultEnv env(Env::posix());
    CheckpointStore store(env, folder, 3);
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
      // After the rename the new one stands, and only its safety from a power cut is in doubt.
      EXPECT_EQ(found.position.step, op == FileOp::kSyncDirectory ? 2 : 1);
      for (const auto& entry : env.list(folder))
        EXPECT_TRUE(entry.name.ends_with(".safetensors")) << entry.name;
    }
  }
}

Recipe small_recipe() {
  return parse_recipe(
      "[data]\nsource = \"synth:size=16,count=100\"\nthreads = 1\n[model]\nname = \"mlp\"\n"
      "[train]\nbatch = 25\nepochs = 2\nthreads = 1\ndevice = \"cpu\"\n",
      "test");
}

TrainerOptions quiet_options(const std::string& out) {
  TrainerOptions options;
  options.out = out;
  options.progress = Progress::Style::kSilent;
  return options;
}

TEST(TrainerOverFaults, AFailedCheckpointEndsTheRunAndTheOlderOneResumes) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "step-00000008"};
  env.inject(fault);
  Trainer trainer(env, small_recipe(), quiet_options(dir / "run"));
  const Error error = error_of([&] { trainer.run(); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos);
  EXPECT_EQ(find_checkpoint(Env::posix(), dir / "run", [](const std::string&) {}).position.step, 4);

  TrainerOptions options = quiet_options(dir / "run");
  options.resume = dir / "run";
  const TrainResult result = Trainer(Env::posix(), small_recipe(), options).run();
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.steps_here, 4);
}

TEST(TrainerOverFaults, MetricsThatCannotBeWrittenEndTheRun) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "metrics.jsonl"};
  env.inject(fault);
  Trainer trainer(env, small_recipe(), quiet_options(dir / "run"));
  EXPECT_EQ(error_of([&] { trainer.run(); }).exit_code(), 4);
}

TEST(Trainer, ResumingWithAnotherSeedOrBatchIsRefused) {
  const TempDir dir;
  Trainer(Env::posix(), small_recipe(), quiet_options(dir / "run")).run();
  Recipe other = small_recipe();
  other.train.batch = 50;
  TrainerOptions options = quiet_options(dir / "run");
  options.resume = dir / "run";
  const Error error = error_of([&] { Trainer(Env::posix(), other, options); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_NE(std::string(error.what()).find("train.batch"), std::string::npos);
}

TEST(Trainer, TheLedgersPhasesSumToWallTime) {
  const TempDir dir;
  const TrainResult result =
      Trainer(Env::posix(), small_recipe(), quiet_options(dir / "run")).run();
  EXPECT_NEAR(result.phases.total(), result.wall_s, 0.01 * result.wall_s);
  EXPECT_GT(result.phases[Phase::kForward], 0);
  EXPECT_GT(result.phases[Phase::kBackward], 0);
  EXPECT_GT(result.phases[Phase::kOptimizer], 0);
}

}  // namespace
}  // namespace saturate
