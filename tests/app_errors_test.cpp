// Errors as a user sees them: one line, the place, a remedy, the documented exit code.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class CommandErrors : public ::testing::Test {
 protected:
  CommandResult train(const std::string& source, const std::string& more = "",
                      const std::string& before = "") {
    return run_saturate(
        "train " + write_small_recipe(dir, source) + " --out " + (dir / "run") + " " + more,
        before);
  }
  TempDir dir;
};

TEST_F(CommandErrors, BadUsageExitsWithTwo) {
  expect_error(run_saturate(""), 2, {"subcommand is required", "saturate --help"});
  expect_error(run_saturate("trian x"), 2, {"no command \"trian\"", "Did you mean \"train\"?"});
  expect_error(run_saturate("train"), 2, {"no recipe given"});
  expect_error(run_saturate("train no-such.toml"), 2, {"(no-such.toml)", "Check the path"});
  expect_error(run_saturate("list nothing"), 2, {"nothing"});
  expect_error(run_saturate("eval x"), 2, {"--data"});
}

TEST_F(CommandErrors, AnUnknownKeyNamesTheNearestOne) {
  expect_error(train(kSmallSynth, "--set train.batchsize=3"), 2,
               {"unknown key train.batchsize", "Did you mean train.batch?"});
  expect_error(train(kSmallSynth, "--set model.name=restnet18"), 2,
               {"\"restnet18\"", "model.name", "Did you mean \"resnet18\"?"});
  expect_error(train(kSmallSynth, "--set schedule.name=cosin"), 2, {"Did you mean \"cosine\"?"});
  expect_error(train(kSmallSynth, "--set optimizer.name=sdg"), 2, {"Did you mean \"sgd\"?"});
  expect_error(train("floder:x"), 2, {"Did you mean \"folder\"?"});
}

TEST_F(CommandErrors, AValueOutOfRangeNamesKeyAndRange) {
  expect_error(train(kSmallSynth, "--set train.batch=0"), 2,
               {"train.batch is out of range: 0", "Give 1 to"});
  expect_error(train(kSmallSynth, "--set train.epochs=1e300"), 2, {"2^53 steps", "train.epochs"});
  expect_error(train("synth:size=1"), 2, {"size"});
  expect_error(train(kSmallSynth, "--set model.classes=3"), 2, {"model.classes is 3", "10"});
  expect_error(train(kSmallSynth, "--set train.tta=shift:16"), 2, {"train.tta shifts by 16", "16"});
  expect_error(train(kSmallSynth, "--set train.device=cpu --set augment.device=cuda"), 2,
               {"the run is not on a GPU", "augment.device"});
  expect_error(train(kSmallSynth,
                     "--set train.device=cpu --set data.decode_device=cuda --set data.decode=fast"),
               2, {"the run is not on a GPU", "data.decode_device"});
  expect_error(train(kSmallSynth, "--set train.batch=199 --set model.name=resnet18"), 2,
               {"last batch of one image, which BatchNorm in resnet18 cannot train on"});
  expect_error(train(kSmallSynth, "--set train.batch=201 --set train.drop_last=true"), 2,
               {"no full batch"});
}

TEST_F(CommandErrors, MissingOrEmptyFoldersExitWithThree) {
  expect_error(train("folder:" + (dir / "missing")), 3, {"no such folder", dir / "missing"});
  std::filesystem::create_directories(dir / "empty");
  expect_error(train("folder:" + (dir / "empty")), 3, {"no class folders", dir / "empty"});
  std::filesystem::create_directories(dir / "hollow/cat");
  expect_error(train("folder:" + (dir / "hollow")), 3, {"hollow/cat"});
  expect_error(train("tar:" + (dir / "missing.tar")), 3, {"missing.tar"});
}

// Twelve readable images of two classes, and three broken ones.
void write_partly_broken(const std::string& root) {
  write_folder_dataset(root, 12);
  write_file(root + "/even/zero.jpg", "");
  write_file(root + "/odd/text.jpg", "not a picture\n");
  const std::string jpeg = noise_jpeg(40, 40, 9);
  write_file(root + "/odd/cut.jpg", jpeg.substr(0, jpeg.size() / 2));
}

TEST_F(CommandErrors, ABrokenImageStopsTheRunAndIsNamed) {
  for (const auto& [name, content, reason] : std::vector<std::array<std::string, 3>>{
           {"zero.jpg", "", "empty"},
           {"text.jpg", "hello hello hello", "not a JPEG"},
           {"cut.jpg", noise_jpeg(40, 40, 9).substr(0, 900), "truncated"}}) {
    const std::string root = dir / name;
    write_folder_dataset(root, 12);
    write_file(root + "/odd/" + name, content);
    const CommandResult result = train("folder:" + root);
    expect_error(result, 3, {root + "/odd/" + name, reason, "data.on_error=skip"});
    std::filesystem::remove_all(dir / "run");
  }
}

TEST_F(CommandErrors, SkippedImagesAreCountedAndNamed) {
  write_partly_broken(dir / "data");
  const CommandResult result = train("folder:" + (dir / "data"),
                                     "--set data.on_error=skip --set train.epochs=1 --set "
                                     "train.batch=4");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("skipped 3 broken images"), std::string::npos) << result.out;
  for (const char* name : {"even/zero.jpg", "odd/text.jpg", "odd/cut.jpg"})
    EXPECT_NE(result.out.find(name), std::string::npos) << name;
  EXPECT_EQ(read_metrics(dir / "run").back()["samples"], 12);
}

// This is not known before training.
TEST_F(CommandErrors, ABatchReducedToOneImageBySkippingIsNamed) {
  write_partly_broken(dir / "data");
  std::filesystem::remove(dir / "data/even/zero.jpg");
  std::filesystem::remove(dir / "data/odd/text.jpg");  // thirteen images, the last one broken
  const CommandResult result =
      train("folder:" + (dir / "data"),
            "--set data.on_error=skip --set data.shuffle=none --set train.batch=11 --set "
            "model.name=resnet18");
  expect_failed_run(
      result, 4, {"a micro-batch has one sample, which BatchNorm cannot train on", "train.batch"});
}

// By their headers: only data verify finds a truncated image.
TEST_F(CommandErrors, InspectListsBrokenImages) {
  write_partly_broken(dir / "data");
  for (const char* more : {"", " --all", " --headers"}) {
    const CommandResult result = run_saturate("data inspect folder:" + (dir / "data") + " --json " +
                                              (dir / "report.json") + more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("data verify"), std::string::npos) << result.out;
    const auto json = nlohmann::json::parse(read_text(dir / "report.json"));
    EXPECT_EQ(json["samples"], 15);
    EXPECT_EQ(json["looked_at"], 15);
    EXPECT_EQ(json["broken"].size(), 2u);
    EXPECT_EQ(json["classes"]["odd"], 8);
  }
}

TEST_F(CommandErrors, AStartThatFailsLeavesNothing) {
  expect_error(train(kSmallSynth, "--set train.batch=199 --set model.name=resnet18"), 2,
               {"last batch of one image"});
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
  const std::string missing = "folder:" + (dir / "missing");
  const std::string command = "train " + write_small_recipe(dir, missing) + " --out ";
  const std::string torchrun =
      "TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=1";
  for (const std::string& before : {std::string(), torchrun}) {
    expect_error(run_saturate(command + (dir / "a/b/run"), before), 3, {"no such folder"});
    EXPECT_FALSE(std::filesystem::exists(dir / "a")) << before;
  }
  expect_error(run_saturate("train " + write_small_recipe(dir, missing), "cd " + dir.path() + ";"),
               3, {"no such folder"});
  EXPECT_FALSE(std::filesystem::exists(dir / "runs"));
  std::filesystem::create_directory(dir / "kept");
  expect_error(run_saturate(command + (dir / "x/../kept/y")), 3, {"no such folder"});
  EXPECT_TRUE(std::filesystem::is_empty(dir / "kept")) << "it was there before";
  EXPECT_FALSE(std::filesystem::exists(dir / "x"));
  std::filesystem::create_directory(dir / "run");
  expect_error(train(missing), 3, {"no such folder"});
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run")) << "it was there before";
}

TEST_F(CommandErrors, AFolderWithARunIsNotOverwritten) {
  ASSERT_EQ(train(kSmallSynth, "--set train.epochs=0.1").exit_code, 0);
  expect_error(train(kSmallSynth), 2, {"holds a run already", "--resume=auto"});
  expect_error(run_saturate("train " + write_small_recipe(dir, kSmallSynth) + " --out " +
                            (dir / "missing/../run")),
               2, {"holds a run already"});
  EXPECT_EQ(run_saturate("train --resume=auto --out " + (dir / "missing/../run")).exit_code, 0);
}

TEST_F(CommandErrors, EvaluationDataWithOtherClassesAreRefused) {
  write_folder_dataset(dir / "data", 12);
  expect_error(
      train("folder:" + (dir / "data"), std::string("--set data.eval_source=") + kSmallSynthTest),
      3, {"unknown to the training data"});
}

TEST_F(CommandErrors, UnusableCheckpointsExitWithFour) {
  ASSERT_EQ(train(kSmallSynth, "--set train.epochs=0.1").exit_code, 0);
  const std::string good = dir / "run/checkpoints/step-00000001.safetensors";
  const std::string bytes = read_text(good);
  const auto eval = [&](const std::string& path) {
    return run_saturate("eval " + path + " --data " + kSmallSynthTest);
  };
  ASSERT_EQ(eval(good).exit_code, 0);
  expect_error(eval(dir / "none"), 4, {"no such run or checkpoint"});
  write_file(dir / "cut", bytes.substr(0, bytes.size() - 100));
  expect_error(eval(dir / "cut"), 4, {dir / "cut"});
  std::string flipped = bytes;
  flipped[flipped.size() - 5000] ^= 4;
  write_file(dir / "flipped", flipped);
  expect_error(eval(dir / "flipped"), 4, {"checksum"});
  std::string newer = bytes;
  const std::string version = "\\\"version\\\":1";
  ASSERT_NE(newer.find(version), std::string::npos);
  newer[newer.find(version) + version.size() - 1] = '9';
  write_file(dir / "newer", newer);
  expect_error(eval(dir / "newer"), 4, {"newer saturate", dir / "newer", "Update"});
  write_file(dir / "text", "hello");
  expect_error(eval(dir / "text"), 4, {dir / "text"});
  expect_error(
      run_saturate("eval " + good + " --data " + kSmallSynthTest + " --set model.name=mlp"), 4,
      {"tensor", "another model"});
  std::filesystem::create_directories(dir / "folder");
  expect_error(eval(dir / "folder"), 4, {"holds no checkpoint"});
}

TEST_F(CommandErrors, AnUnreadableCheckpointIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root can read every file";
  write_file(dir / "locked", "x");
  std::filesystem::permissions(dir / "locked", std::filesystem::perms::none);
  expect_error(run_saturate("eval " + (dir / "locked") + " --data synth:"), 4,
               {"Permission denied", dir / "locked"});
}

TEST_F(CommandErrors, AFileSizeLimitFailsTheSaveWithoutPartialFiles) {
  const CommandResult result =
      train(kSmallSynth, "--set model.name=resnet18 --set train.epochs=0.1 --set augment.size=32",
            "ulimit -f 1000;");  // a checkpoint of ResNet-18 is 90 MB
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_NE(result.err.find("cannot write"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("failed at step 1"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("where time went"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("next:"), std::string::npos) << "there is nothing to resume";
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run/checkpoints"));
}

TEST_F(CommandErrors, AFullDiskIsAFailedStart) {
  const std::string disk = dir / "disk";
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting a small disk needs root";
  const CommandResult result =
      run_saturate("train " + write_small_recipe(dir, kSmallSynth) + " --out " + disk +
                   "/run --set model.name=resnet18 --set train.epochs=0.1 --set augment.size=32");
  const bool remains = std::filesystem::exists(disk + "/run");
  umount(disk.c_str());
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_NE(result.err.find("two checkpoints take "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" MB are free (" + disk + "/run/checkpoints)"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_FALSE(remains);
}

// Such as when the disk of a log is full.
TEST_F(CommandErrors, AnUnwritableStderrDoesNotEndTheRun) {
  const auto code_of = [](const std::string& arguments) {
    const int status =
        std::system(("'" + kCommand + "' " + arguments + " >/dev/null 2>/dev/full").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  EXPECT_EQ(code_of("train " + write_small_recipe(dir, kSmallSynth) + " --out " + (dir / "run")),
            0);
  EXPECT_TRUE(std::filesystem::exists(dir / "run/checkpoints/step-00000020.safetensors"));
  EXPECT_EQ(code_of("train " + (dir / "missing.toml")), 2);
}

// As daemons start their programs: what is printed must not go into a file that got the number.
TEST_F(CommandErrors, AClosedStderrLeavesTheFilesOfARunAlone) {
  int number = 0;
  for (const std::string closed : {"2>&-", "<&- 2>&-"}) {
    const std::string run = dir / ("closed" + std::to_string(number++));
    const int status =
        std::system(("'" + kCommand + "' train " + write_small_recipe(dir, kSmallSynth) +
                     " --out " + run + " >'" + (dir / "out") + "' " + closed)
                        .c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << closed << read_text(dir / "out");
    EXPECT_EQ(read_text(run + "/.lock").find_first_not_of("0123456789"), std::string::npos)
        << closed << read_text(run + "/.lock");
    EXPECT_EQ(losses(run, "step").size(), 20u) << closed;
  }
}

TEST_F(CommandErrors, ANonFiniteLossEndsTheRun) {
  const CommandResult result = train(kSmallSynth, "--set optimizer.lr=1e30");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_NE(result.err.find("the loss is not finite by step"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace saturate::testing
