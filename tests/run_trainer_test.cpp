// Whole runs with failing, slow or shared storage, in this process.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "advise/measured_trainer.h"
#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/fault_env.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::quiet_options;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

TEST(TrainerWithFaults, AFailedCheckpointEndsTheRunAndTheOlderOneResumes) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "step-00000008"};
  env.inject(fault);
  const Error error =
      error_of([&] { Trainer(env, small_recipe(), saving_options(dir / "run")).run(); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos);
  EXPECT_EQ(find_checkpoint(Env::posix(), dir / "run", [](const std::string&) {}).position.step, 4);

  TrainerOptions options = saving_options(dir / "run");
  options.resume = dir / "run";
  const TrainResult result = Trainer(Env::posix(), small_recipe(), options).run();
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.steps_here, 4);
}

// Operations on checkpoint files, of a run that saves in the foreground.
Recipe often_saving_recipe() {
  Recipe recipe = small_recipe();
  recipe.checkpoint.every_steps = 2;
  recipe.checkpoint.background = false;
  return recipe;
}

TEST(TrainerWithFaults, AnyOperationOfACheckpointMayFailOnce) {
  const TempDir dir;
  int runs = 0;
  for (FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kClose, FileOp::kRename,
                    FileOp::kSyncDirectory, FileOp::kList, FileOp::kRemove}) {
    const FaultMatch match = {op, "checkpoints"};
    uint64_t operations = 1;
    for (uint64_t nth = 0; nth < operations; ++nth, ++runs) {
      const std::string out = dir / std::to_string(runs);
      FaultEnv env(Env::posix());
      Trainer trainer(env, often_saving_recipe(), saving_options(out));
      const uint64_t before = env.count(match);
      Fault fault;
      fault.match = match;
      fault.skip = nth;
      fault.times = 1;
      fault.written = 10;
      env.inject(fault);
      std::optional<Error> error;
      try {
        EXPECT_EQ(trainer.run().steps, 8);
      } catch (const Error& failed) {
        EXPECT_EQ(failed.exit_code(), 4) << failed.what();
        error = failed;
      }
      operations = env.count(match) - before;
      // Only the final checkpoint's failure may end a run.
      const auto found = find_checkpoint(Env::posix(), out, [](const std::string&) { FAIL(); });
      EXPECT_EQ(found.position.step, error && op != FileOp::kSyncDirectory ? 6 : 8)
          << int(op) << " " << nth;
    }
  }
  EXPECT_GT(runs, 8 * 4);
}

TEST(TrainerWithFaults, AFullDiskEndsTheRunOnlyAtItsEnd) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "checkpoints"};
  env.inject(fault);
  Trainer trainer(env, often_saving_recipe(), saving_options(dir / "run"));
  EXPECT_EQ(error_of([&] { trainer.run(); }).exit_code(), 4);
  EXPECT_EQ(env.count({FileOp::kCreate, "checkpoints"}), 5u)
      << "at steps 2, 4, 6, 8, and at the end";
  EXPECT_TRUE(list_checkpoints(env, dir / "run/checkpoints").empty());
}

TEST(TrainerWithFaults, ASlowDiskDoesNotDelayTraining) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.delay({FileOp::kWrite, "checkpoints"}, 300'000'000, 300'000'000);
  Recipe recipe = small_recipe();
  recipe.train.epochs = 10;
  recipe.checkpoint.every_steps = 1;
  recipe.checkpoint.keep_best = false;
  const TrainResult result = Trainer(env, recipe, saving_options(dir / "run")).run();
  EXPECT_EQ(result.steps, 40);
  EXPECT_LT(env.count({FileOp::kCreate, "checkpoints"}), 30u) << "saves are postponed, not queued";
  EXPECT_EQ(find_checkpoint(env, dir / "run", [](const std::string&) { FAIL(); }).position.step,
            40);
}

TEST(Trainer, SavesByTime) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  env.delay({FileOp::kWrite, "metrics.jsonl"}, 60'000'000'000, 60'000'000'000);
  Recipe recipe = small_recipe();
  recipe.watch.every = 1;  // a minute per step
  recipe.checkpoint.every = 0;
  recipe.checkpoint.every_minutes = 3;
  recipe.checkpoint.background = false;
  recipe.checkpoint.keep = 9;
  Trainer(env, recipe, saving_options(dir / "run")).run();
  EXPECT_EQ(list_checkpoints(env, dir / "run/checkpoints").size(), 3u);
}

TEST(TrainerWithFaults, UnwritableMetricsEndTheRun) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "metrics.jsonl"};
  env.inject(fault);
  Trainer trainer(env, small_recipe(), saving_options(dir / "run"));
  EXPECT_EQ(error_of([&] { trainer.run(); }).exit_code(), 4);
}

// Three batches an epoch, of which the run makes two.
TEST(Trainer, AnEpochWhoseRestIsSkippedIsComplete) {
  for (const bool is_broken : {false, true}) {
    const TempDir dir;
    Recipe recipe = small_recipe();
    recipe.data.on_error = OnError::kSkip;
    recipe.data.shuffle = {ShuffleMode::kNone};
    recipe.augment.size = 16;
    recipe.train.batch = 4;
    recipe.train.epochs = 2.0 / 3;
    std::vector<std::string> files;
    for (uint64_t i = 0; i < 12; ++i)
      files.push_back(is_broken && i >= 8 ? "no image" : testing::noise_jpeg(16, 16, i));
    TrainerOptions options = saving_options(dir / "run");
    options.dataset = std::make_shared<testing::MemoryDataset>(files);
    EXPECT_EQ(Trainer(Env::posix(), recipe, options).run().steps, 2);
    const RunPosition at =
        find_checkpoint(Env::posix(), dir / "run", [](const std::string&) {}).position;
    EXPECT_EQ(at.epoch, is_broken ? 1 : 0);
    EXPECT_EQ(at.batch, is_broken ? 0 : 2);
  }
}

// Otherwise it would blame a rank with a long set-up, and not know where a failure occurred.
TEST(Trainer, ALauncherIsNotifiedDuringSetUp) {
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  setenv("SATURATE_REPORT_FD", std::to_string(ends[1]).c_str(), 1);
  Recipe recipe = small_recipe();
  recipe.data.eval_source = "folder:/nowhere";
  const Error error =
      error_of([&] { Trainer(Env::posix(), recipe, testing::quiet_options(dir.path())); });
  unsetenv("SATURATE_REPORT_FD");
  ::close(ends[1]);
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  char said[100] = {};
  EXPECT_GT(::read(ends[0], said, sizeof said - 1), 0);
  ::close(ends[0]);
  EXPECT_TRUE(std::string(said).starts_with("at step 0, in ")) << said;
}

TEST(Trainer, ResumingWithAnotherSeedOrBatchIsRefused) {
  const TempDir dir;
  Trainer(Env::posix(), small_recipe(), saving_options(dir / "run")).run();
  Recipe other = small_recipe();
  other.train.batch = 50;
  TrainerOptions options = saving_options(dir / "run");
  options.resume = dir / "run";
  const Error error = error_of([&] { Trainer(Env::posix(), other, options); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_NE(std::string(error.what()).find("train.batch"), std::string::npos);
}

// Three batches an epoch, of which the first is skipped.
TEST(Trainer, ARunThatSkipsABatchResumesWithTheNextOne) {
  const TempDir dir;
  Recipe recipe = small_recipe();
  recipe.data.on_error = OnError::kSkip;
  recipe.data.shuffle = {ShuffleMode::kNone};
  recipe.augment.size = 16;
  recipe.train.batch = 4;
  recipe.watch.every = 1;
  std::vector<std::string> files(4, "no image");
  for (uint64_t i = 0; i < 8; ++i) files.push_back(testing::noise_jpeg(16, 16, i));
  TrainerOptions options = saving_options(dir / "whole");
  options.dataset = std::make_shared<testing::MemoryDataset>(files);
  Trainer(Env::posix(), recipe, options).run();

  options.out = dir / "cut";
  int asked = 0;  // once before the first step
  options.should_stop = [&] { return ++asked == 2; };
  EXPECT_EQ(Trainer(Env::posix(), recipe, options).run().steps, 1);
  options.resume = dir / "cut";
  options.should_stop = [] { return false; };
  EXPECT_EQ(Trainer(Env::posix(), recipe, options).run().steps, 6);
  EXPECT_EQ(testing::losses(dir / "cut", "step"), testing::losses(dir / "whole", "step"));
}

TEST(Trainer, ClassesThatAreNotUtf8HaveTheSameNamesInAllFiles) {
  const TempDir dir;
  for (const char* name : {"gr\xf6n/", "gr\xfcn/"})
    for (uint64_t i = 0; i < 4; ++i)
      testing::write_file(dir / "set/" + name + std::to_string(i) + ".jpg",
                          testing::noise_jpeg(16, 16, i));
  Recipe recipe = small_recipe();
  recipe.data.source = recipe.data.eval_source = "folder:" + (dir / "set");
  recipe.augment.size = 16;
  recipe.train.batch = 8;
  Trainer(Env::posix(), recipe, saving_options(dir / "run")).run();
  const std::vector<std::string> expected = {"gr\\xf6n", "gr\\xfcn"};
  EXPECT_EQ(find_checkpoint(Env::posix(), dir / "run", [](const std::string&) {}).classes,
            expected);
  const auto found = nlohmann::json::parse(testing::read_text(dir / "run/classes.json"))["classes"];
  ASSERT_EQ(found.size(), 2u);
  const std::string training = testing::read_text(dir / "run/samples/training.json");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i]["name"], expected[i]);
    EXPECT_NE(training.find(nlohmann::json(expected[i]).dump()), std::string::npos) << training;
  }
}

TEST(Trainer, RestoresTheProcesssNumberOfThreads) {
  const TempDir dir;
  const int before = at::get_num_threads();
  Recipe recipe = small_recipe();
  recipe.train.threads = before + 1;
  {
    Trainer trainer(Env::posix(), recipe, quiet_options(dir / "run"));
    EXPECT_TRUE(trainer.step());
    EXPECT_EQ(at::get_num_threads(), before + 1);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Trainer, TheLoaderHasLowerPriorityThanAStepOnTheCpu) {
  const auto nice_of = [](int asked) {
    const TempDir dir;
    Recipe recipe = small_recipe();
    recipe.data.nice = asked;
    return Trainer(Env::posix(), recipe, testing::quiet_options(dir.path())).recipe().data.nice;
  };
  EXPECT_GT(nice_of(-1), 0);
  EXPECT_EQ(nice_of(0), 0) << "as the user sets it";
  EXPECT_EQ(nice_of(4), 4);
}

// On a clock that advances only while a record is written, a minute each: from the trainer's
// construction to its end's record every minute is in exactly one phase.
TEST(Trainer, TheLedgersPhasesSumToWallTime) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  env.delay({FileOp::kWrite, "metrics.jsonl"}, 60'000'000'000, 60'000'000'000);
  const TrainResult result = Trainer(env, small_recipe(), saving_options(dir / "run")).run();
  const double minutes = double(env.count({FileOp::kWrite, "metrics.jsonl"}));
  ASSERT_EQ(minutes, 2 * 2 + 1) << "of each epoch its steps' and its own, and the end's";
  EXPECT_NEAR(result.phases.total(), 60 * minutes, 1e-6);
  EXPECT_NEAR(result.phases[Phase::kHost], 60 * (minutes - 1), 1e-6);
  EXPECT_NEAR(result.wall_s, 60 * minutes, 1e-6);
}

// From the first step's begin to the last one's end, by a clock that the ledger does not read. The
// clock is read on both sides of the ledger, so that a pause of the machine between two readings is
// in both bounds.
TEST(Trainer, TheLedgersPhasesOfAllStepsSumToAnotherClocksTime) {
  const TempDir dir;
  Recipe recipe = small_recipe();
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  recipe.train.epochs = 8;
  recipe.watch.every = 3;
  struct Reading {
    std::chrono::steady_clock::time_point before, after;
    TrainResult found;
  };
  Trainer trainer(Env::posix(), recipe, saving_options(dir / "run"));
  std::vector<Reading> readings;
  do {
    const auto before = std::chrono::steady_clock::now();
    TrainResult found = trainer.so_far();
    readings.push_back({before, std::chrono::steady_clock::now(), std::move(found)});
  } while (readings.size() <= 32 && trainer.step());
  const auto seconds = [](auto begin, auto end) {
    return std::chrono::duration<double>(end - begin).count();
  };
  const Reading &first = readings.front(), &last = readings.back();
  EXPECT_EQ(first.found.steps_here, 0);
  EXPECT_EQ(last.found.steps_here, 32);
  const PhaseTimes phases = last.found.phases - first.found.phases;
  EXPECT_GE(phases.total(), 0.99 * seconds(first.after, last.before));
  EXPECT_LE(phases.total(), 1.01 * seconds(first.before, last.after));
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kHost,
                            Phase::kEvaluation, Phase::kCheckpoint})
    EXPECT_GT(phases[phase], 0) << phase_name(phase);
}

// Losses of every step; the weights do not change. `between` is called before each with its index.
std::vector<double> losses_of(const std::string& out,
                              const std::function<void(Trainer&, int64_t)>& between) {
  Recipe recipe = small_recipe();
  recipe.optimizer.lr = 0;
  recipe.watch.every = 1;
  TrainerOptions options = saving_options(out);
  options.save = false;
  Trainer trainer(Env::posix(), recipe, options);
  int64_t steps = 0;
  do {
    between(trainer, steps++);
  } while (trainer.step());
  EXPECT_EQ(trainer.so_far().steps, 8);
  EXPECT_FALSE(Env::posix().exists(out + "/checkpoints/step-00000008.safetensors"));
  return testing::losses(out, "step");
}

TEST(TrainerStep, CallsMakeTheRunsSteps) {
  const TempDir dir;
  const Recipe recipe = small_recipe();
  const TrainResult whole = Trainer(Env::posix(), recipe, saving_options(dir / "whole")).run();
  Trainer trainer(Env::posix(), recipe, saving_options(dir / "steps"));
  int64_t calls = 0;
  while (trainer.step()) EXPECT_EQ(trainer.so_far().steps, ++calls);
  EXPECT_EQ(calls, whole.steps);
  EXPECT_FALSE(trainer.step()) << "it has ended";
  const TrainResult found = trainer.so_far();
  EXPECT_EQ(found.end, RunEnd::kDone);
  EXPECT_EQ(found.checkpoint, dir / "steps/checkpoints/step-00000008.safetensors");
  EXPECT_EQ(testing::losses(dir / "steps", "step"), testing::losses(dir / "whole", "step"));
  EXPECT_EQ(testing::losses(dir / "steps", "epoch"), testing::losses(dir / "whole", "epoch"));
}

// A caller that stops calling leaves the files of a killed run, except that a save in progress is
// completed.
TEST(TrainerStep, AnUnfinishedRunCanBeResumed) {
  const TempDir dir;
  const Recipe recipe = small_recipe();
  Trainer(Env::posix(), recipe, saving_options(dir / "whole")).run();
  {
    Trainer trainer(Env::posix(), recipe, saving_options(dir / "left"));
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(trainer.step());
  }
  TrainerOptions options = saving_options(dir / "left");
  options.resume = dir / "left";
  Trainer trainer(Env::posix(), recipe, options);
  EXPECT_EQ(trainer.so_far().steps, 4) << "the checkpoint of the first epoch";
  EXPECT_EQ(trainer.run().steps, 8);
  EXPECT_EQ(testing::losses(dir / "left", "epoch"), testing::losses(dir / "whole", "epoch"));
}

TEST(TrainerMeasured, AHeldBatchIsTheEpochsFirstAndTheRunContinuesAfterIt) {
  const TempDir dir;
  const auto plain = losses_of(dir / "plain", [](Trainer&, int64_t) {});
  DeviceBatch held;
  const auto found = losses_of(dir / "held", [&](Trainer& trainer, int64_t steps) {
    if (steps == 1) held = hold_batch(trainer);
    if (steps == 3) release_batch(trainer);
    if (steps == 6) {
      EXPECT_EQ(trainer.so_far().samples, 150);
    }
  });
  EXPECT_EQ(held.count(), 25);
  std::vector<double> expected = plain;
  expected[1] = expected[2] = plain[0];
  EXPECT_EQ(found, expected);
}

TEST(TrainerMeasured, ABatchHeldPastAnEpochsEndDoesNotEndTheRun) {
  const TempDir dir;
  const auto plain = losses_of(dir / "plain", [](Trainer&, int64_t) {});
  const auto found = losses_of(dir / "held", [&](Trainer& trainer, int64_t steps) {
    if (steps == 2) hold_batch(trainer);
    if (steps == 5) release_batch(trainer);
  });
  std::vector<double> expected = plain;
  expected[2] = expected[3] = expected[4] = plain[0];
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace saturate
