// Whole runs of `saturate train` and `eval`: their files, reproducibility, resuming and stopping.
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "saturate/data/env.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class TrainCommand : public TrainingTest {};

TEST_F(TrainCommand, WritesTheDocumentedFiles) {
  const CommandResult result = train("run");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("where time went"), std::string::npos);
  EXPECT_NE(result.out.find("next:"), std::string::npos);
  EXPECT_NE(result.out.find(" train " + (dir / "run/recipe.toml --set ")), std::string::npos)
      << "the saved recipe has the settings of --set";
  EXPECT_EQ(result.err.find('\r'), std::string::npos) << "a log file has no live bar";

  const auto records = read_metrics(dir / "run");
  ASSERT_EQ(records.size(), 20u + 2 + 2 + 1);
  EXPECT_EQ(records.back()["kind"], "end");
  EXPECT_EQ(records.back()["step"], 20);
  EXPECT_EQ(records.back()["samples"], 400);
  double phases = 0;
  for (const auto& [name, seconds] : records.back()["phases"].items()) phases += double(seconds);
  EXPECT_NEAR(phases, records.back()["time_s"], 0.01 * phases);
  EXPECT_TRUE(std::filesystem::exists(dir / "run/checkpoints/step-00000020.safetensors"));
  EXPECT_NE(read_text(dir / "run/recipe.toml").find("classes = 10"), std::string::npos);
}

TEST_F(TrainCommand, TheSameSeedGivesTheSameLossesForAnyNumberOfLoaderThreads) {
  ASSERT_EQ(train("one", {"data.threads=1"}).exit_code, 0);
  ASSERT_EQ(train("four", {"data.threads=4", "data.prefetch=2"}).exit_code, 0);
  ASSERT_EQ(train("held", {"data.cache=device"}).exit_code, 0);
  ASSERT_EQ(train("other", {"seed=4"}).exit_code, 0);
  for (const char* same : {"four", "held"}) {
    expect_same_losses(dir / "one", dir / same, "step");
    expect_same_losses(dir / "one", dir / same, "eval");
  }
  EXPECT_NE(losses(dir / "one", "step"), losses(dir / "other", "step"));
}

TEST_F(TrainCommand, TheSavedRecipeRepeatsTheRun) {
  ASSERT_EQ(train("first").exit_code, 0);
  const CommandResult again =
      run_saturate("train " + (dir / "first/recipe.toml") + " --out " + (dir / "again"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  expect_same_losses(dir / "first", dir / "again", "step");
}

TEST_F(TrainCommand, EvalPrintsTheAccuracyThatTrainingPrinted) {
  ASSERT_EQ(train("run").exit_code, 0);
  const CommandResult eval = run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest +
                                          " --json " + (dir / "eval.json"));
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const auto json = nlohmann::json::parse(read_text(dir / "eval.json"));
  const auto end = read_metrics(dir / "run").back();
  EXPECT_EQ(json["accuracy"], end["accuracy"]);
  EXPECT_EQ(json["loss"], end["loss"]);
  EXPECT_EQ(json["samples"], 50);
}

TEST_F(TrainCommand, AResumedRunEqualsTheUninterruptedOne) {
  ASSERT_EQ(train("whole", {"train.epochs=3"}).exit_code, 0);
  ASSERT_EQ(train("cut", {"train.epochs=3", "debug.off=background"}).exit_code, 0);
  remove_checkpoints(dir / "cut", {20, 30});
  const CommandResult resumed = run_saturate("train --resume " + (dir / "cut"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_losses(dir / "whole", dir / "cut", "step");
  expect_same_losses(dir / "whole", dir / "cut", "eval");
}

// A run's recipe as earlier versions wrote it.
std::string with_retired_keys(std::string toml) {
  const auto replace = [&](const std::string& now, const std::string& before) {
    const auto at = toml.find(now);
    ASSERT_NE(at, std::string::npos) << now << " in\n" << toml;
    toml.replace(at, now.size(), before);
  };
  replace("betas = [0.8, 0.999]\n", "beta1 = 0.8\nbeta2 = 0.999\nfused = false\n");
  replace("cycle_momentum = [0.85, 0.95]\n", "cycle_momentum = true\nmomentum_low = 0.85\n");
  replace("cache = 'ram:decoded'\n", "cache = 'ram'\ncache_form = 'decoded'\n");
  replace("tta = ['shift:1']\n", "eval_flip = false\neval_shift = 1\n");
  replace("\n[debug]\noff = ['fused']\nchecks = []\n", "");
  return toml;
}

TEST_F(TrainCommand, ARunOfAnEarlierVersionIsResumedEvaluatedAndExported) {
  const std::vector<std::string> settings = {
      "train.epochs=3",         "optimizer.name=adam",
      "optimizer.lr=0.001",     "optimizer.betas=[0.8, 0.999]",
      "data.cache=ram:decoded", "train.tta=shift:1",
      "debug.off=fused"};
  ASSERT_EQ(train("whole", settings).exit_code, 0);
  ASSERT_EQ(train("old", settings).exit_code, 0);
  remove_checkpoints(dir / "old", {20, 30});
  const std::string recipe_path = dir / "old/recipe.toml";
  write_file(recipe_path, with_retired_keys(read_text(recipe_path)));
  const std::string path = dir / "old/checkpoints/step-00000010.safetensors";
  Checkpoint checkpoint = read_checkpoint(Env::posix(), path);
  checkpoint.recipe_toml = with_retired_keys(checkpoint.recipe_toml);
  write_checkpoint(Env::posix(), path, checkpoint);

  for (const std::string& command :
       {"eval " + path + " --data " + kSmallSynthTest, "report " + (dir / "old"),
        "export " + path + " --format safetensors --out " + (dir / "w.safetensors")}) {
    const CommandResult result = run_saturate(command);
    EXPECT_EQ(result.exit_code, 0) << command << ": " << result.err;
  }
  const CommandResult resumed = run_saturate("train --resume " + (dir / "old"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_losses(dir / "whole", dir / "old", "step");
  expect_same_losses(dir / "whole", dir / "old", "eval");

  write_file(dir / "new.toml", with_retired_keys(read_text(dir / "whole/recipe.toml")));
  const CommandResult refused = run_saturate("train " + (dir / "new.toml"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find(" is now "), std::string::npos) << refused.err;
}

TEST_F(TrainCommand, KeepsTheNewestCheckpoints) {
  ASSERT_EQ(train("run", {"train.epochs=4", "checkpoint.keep=2", "checkpoint.keep_best=false",
                          "debug.off=background"})
                .exit_code,
            0);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "run/checkpoints"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"step-00000030.safetensors", "step-00000040.safetensors"}));
}

TEST_F(TrainCommand, ACheckpointIsFoundFromAPathInsideTheRun) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string name = "step-00000010.safetensors", run = dir / "run";
  for (const auto& [folder, path] : {std::pair{run, "checkpoints/" + name},
                                     {run + "/checkpoints", name},
                                     {run + "/checkpoints", "./" + name},
                                     {run, "../run/checkpoints/" + name}}) {
    const CommandResult resumed = run_saturate("train --resume " + path, "cd '" + folder + "';");
    EXPECT_EQ(resumed.exit_code, 0) << path << ": " << resumed.err;
    EXPECT_EQ(read_metrics(run).back()["step"], 20);
  }
}

TEST_F(TrainCommand, ARecipeInTheFolderIsNotReplaced) {
  const std::string own = dir / "exp/recipe.toml";
  write_file(own, "# mine\n" + read_text(recipe));
  for (const std::string more : {"", " --resume=auto"})
    expect_error(run_saturate("train " + own + " --out " + (dir / "exp") + more), 2,
                 {"holds a recipe.toml", dir / "exp", "another --out"});
  EXPECT_TRUE(read_text(own).starts_with("# mine\n"));
  EXPECT_EQ(folder_contents(dir / "exp").size(), 1u);
}

TEST_F(TrainCommand, ACheckpointInNoRunsFolderNeedsOut) {
  ASSERT_EQ(train("run", {"debug.off=background"}).exit_code, 0);
  const std::string name = "step-00000010.safetensors", saved = dir / "project/saved";
  std::filesystem::create_directories(saved);
  std::filesystem::copy_file(dir / ("run/checkpoints/" + name), saved + "/" + name);
  write_file(dir / "project/recipe.toml", "not the run's");
  for (const std::string& path : {saved, saved + "/" + name})
    expect_error(run_saturate("train --resume " + path), 2, {"in no run's folder", path, "--out"});
  expect_error(run_saturate("train --resume " + name, "cd '" + saved + "';"), 2,
               {"in no run's folder"});
  EXPECT_EQ(folder_contents(dir / "project").size(), 2u);
  const CommandResult resumed =
      run_saturate("train --resume " + saved + "/" + name + " --out " + (dir / "new"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find("cannot be used"), std::string::npos) << resumed.err;
  EXPECT_EQ(read_metrics(dir / "new").back()["step"], 20);
}

TEST_F(TrainCommand, ALinkToACheckpointIsOfItsRun) {
  ASSERT_EQ(train("run", {"debug.off=background"}).exit_code, 0);
  std::filesystem::create_symlink(dir / "run/checkpoints", dir / "saved");
  std::filesystem::create_symlink(dir / "run/checkpoints/step-00000010.safetensors",
                                  dir / "last.safetensors");
  for (const char* link : {"saved", "last.safetensors"}) {
    const CommandResult resumed = run_saturate("train --resume " + (dir / link));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_NE(resumed.out.find(dir / "run"), std::string::npos) << resumed.out;
  }
  EXPECT_EQ(read_metrics(dir / "run").back()["step"], 20);
}

TEST_F(TrainCommand, ARunThatHadEndedMakesNoOtherFolder) {
  ASSERT_EQ(train("run").exit_code, 0);
  const CommandResult again =
      run_saturate("train --resume " + (dir / "run/checkpoints") + " --out " + (dir / "new/run"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  EXPECT_NE(again.out.find("run folder  " + (dir / "run") + "\n"), std::string::npos) << again.out;
  EXPECT_FALSE(std::filesystem::exists(dir / "new"));
  const auto before = folder_contents(dir / "run");
  EXPECT_EQ(run_saturate("train --resume " + (dir / "run") + " --out " + (dir / "new"),
                         "TORCHELASTIC_RUN_ID=1")
                .exit_code,
            0);
  EXPECT_EQ(folder_contents(dir / "run"), before) << "as the command says";
  std::filesystem::create_directory(dir / "lone");
  std::filesystem::rename(dir / "run/checkpoints/step-00000020.safetensors",
                          dir / "lone/step-00000020.safetensors");
  const CommandResult lone =
      run_saturate("train " + recipe + " --resume " + (dir / "lone/step-00000020.safetensors") +
                   " --out " + (dir / "new"));
  ASSERT_EQ(lone.exit_code, 0) << lone.err;
  EXPECT_NE(lone.out.find("nothing to do"), std::string::npos) << lone.out;
  EXPECT_EQ(lone.out.find("run folder"), std::string::npos) << "there is none";
}

// A launcher restarts a run that failed before its first checkpoint.
TEST_F(TrainCommand, ARestartWithoutACheckpointResumesTheGivenOne) {
  ASSERT_EQ(train("run").exit_code, 0);
  std::filesystem::create_directory(dir / "other");
  const CommandResult again = run_saturate(
      "train --resume " + (dir / "run") + " --out " + (dir / "other") + " --set train.epochs=3",
      "SATURATE_RESTART_FOLDER='" + (dir / "other") + "'");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_metrics(dir / "other").front()["step"], 21);
}

TEST_F(TrainCommand, ChangedDataAreAcceptedOnRequest) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string resume = "train --resume " + (dir / "run") +
                             " --set train.epochs=3 data.source=synth:size=16,count=240";
  expect_error(run_saturate(resume), 3,
               {"have 240 images, and the run to resume had 200", "--allow-changed-data"});
  EXPECT_EQ(read_metrics(dir / "run").back()["step"], 20) << "nothing was trained";
  const CommandResult allowed = run_saturate(resume + " --allow-changed-data");
  ASSERT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_EQ(read_metrics(dir / "run").back()["step"], 36) << "three epochs of twelve steps";
  expect_error(run_saturate("train " + recipe + " --allow-changed-data"), 2, {"--resume"});
}

TEST_F(TrainCommand, EvalResolvesAutomaticSettingsAsTrainingDoes) {
  ASSERT_EQ(train("run").exit_code, 0);
  const CommandResult eval =
      run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest +
                   " --set train.threads=0 --set data.threads=0 --set precision.mode=auto");
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
}

TEST_F(TrainCommand, ABrokenNewestCheckpointIsSkipped) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string newest = dir / "run/checkpoints/step-00000020.safetensors";
  std::string bytes = read_text(newest);
  bytes[bytes.size() / 2] ^= 1;
  write_file(newest, bytes);
  const CommandResult resumed = run_saturate("train --resume " + (dir / "run"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("skipping a broken checkpoint"), std::string::npos);
  EXPECT_EQ(read_metrics(dir / "run").back()["step"], 20);
}

TEST_F(TrainCommand, EveryModelAndOptimizerTrains) {
  for (const char* model : {"mlp", "simple_cnn", "resnet9", "airbench", "resnet18", "resnet50",
                            "mobilenet_v2", "vit_tiny"}) {
    const std::string run = std::string("run-") + model;
    const CommandResult result =
        train(run, {std::string("model.name=") + model, "train.epochs=0.3", "augment.size=32",
                    "model.width=0.25", "optimizer.name=adamw", "optimizer.lr=1e-3"});
    EXPECT_EQ(result.exit_code, 0) << model << ": " << result.err;
    EXPECT_EQ(losses(dir / run, "step").size(), 3u);
  }
}

TEST_F(TrainCommand, Bf16LearnsToo) {
  ASSERT_EQ(train("fp32", {"train.epochs=4"}).exit_code, 0);
  ASSERT_EQ(train("bf16", {"train.epochs=4", "precision.mode=bf16"}).exit_code, 0);
  const double fp32 = losses(dir / "fp32", "step").back();
  const double bf16 = losses(dir / "bf16", "step").back();
  EXPECT_NE(fp32, bf16);
  EXPECT_NEAR(bf16, fp32, 0.25);
  EXPECT_LT(bf16, losses(dir / "bf16", "step").front());
}

// The first convolution rounds its input in any case.
TEST_F(TrainCommand, HalfPrecisionImagesChangeNothingForAModelInThatPrecision) {
  for (const std::string half : {"bf16", "fp16"}) {
    SCOPED_TRACE(half);
    const std::string mode = "precision.mode=" + half, output = "augment.output=" + half;
    // fp16 products are slow on a CPU.
    const std::string small = "model.name=simple_cnn", narrow = "model.width=0.25";
    ASSERT_EQ(train("floats-" + half, {mode, small, narrow}).exit_code, 0);
    ASSERT_EQ(train(half, {mode, output, small, narrow}).exit_code, 0);
    expect_same_losses(dir / half, dir / ("floats-" + half), "step");
    expect_same_losses(dir / half, dir / ("floats-" + half), "eval");
    expect_error(train("wrong-" + half, {output}), 2, {"augment.output", "precision.mode"});
  }
}

TEST_F(TrainCommand, ImagesHeldOnTheDeviceGiveTheLoadersLosses) {
  const std::string crop = "augment.crop=random_resized";
  ASSERT_EQ(train("fed", {crop}).exit_code, 0);
  ASSERT_EQ(train("held", {crop, "data.cache=device:decoded"}).exit_code, 0);
  expect_same_losses(dir / "fed", dir / "held", "step");
  expect_same_losses(dir / "fed", dir / "held", "eval");
}

}  // namespace
}  // namespace saturate::testing
