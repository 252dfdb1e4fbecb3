// The command line's own promises: help, lists, and making datasets.
#include <gtest/gtest.h>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

TEST(Command, HelpListsEveryCommandAndEachHasItsOwn) {
  const CommandResult help = run_saturate("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* command : {"train", "launch", "eval", "data", "bench", "diagnose", "tune",
                              "ladder", "sweep", "report", "export", "list", "env"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const CommandResult own = run_saturate(std::string(command) + " --help");
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_NE(own.out.find("--help"), std::string::npos);
  }
}

TEST(Command, AMisspeltCommandIsNamedWithTheNearest) {
  expect_error(run_saturate("trian recipe.toml"), 2, {"trian", "train"});
  expect_error(run_saturate("data pakc x"), 2, {"pakc", "pack", "(data)"});
  expect_error(run_saturate(""), 2, {"--help"});
}

TEST(Command, VersionAndEnvironmentAreTold) {
  EXPECT_NE(run_saturate("--version").out.find("saturate 0."), std::string::npos);
  const CommandResult env = run_saturate("env");
  EXPECT_EQ(env.exit_code, 0);
  for (const char* fact : {"libtorch      2.11", "cores", "simd", "gpus"})
    EXPECT_NE(env.out.find(fact), std::string::npos) << fact;
}

TEST(Command, ThreadsOfTheStepSleepSoonUnlessTheUserSaysOtherwise) {
  const auto waits = [](const std::string& before) {
    const std::string out = run_saturate("env", "env -u GOMP_SPINCOUNT " + before).out;
    const auto at = out.find("openmp waits");
    return at == std::string::npos ? out : out.substr(at, out.find('\n', at) - at);
  };
  EXPECT_EQ(waits(""), "openmp waits  GOMP_SPINCOUNT=2000");
  EXPECT_EQ(waits("GOMP_SPINCOUNT=7"), "openmp waits  GOMP_SPINCOUNT=7");
  EXPECT_EQ(waits("OMP_WAIT_POLICY=active"), "openmp waits  OMP_WAIT_POLICY=active");
}

TEST(Command, ListNamesWhatARecipeCanName) {
  const std::string all = run_saturate("list").out;
  for (const char* name :
       {"folder", "tar", "shard", "lmdb", "idx", "cifar", "synth", "mlp", "simple_cnn", "resnet9",
        "airbench", "resnet18", "resnet50", "sgd", "adamw", "cosine"})
    EXPECT_NE(all.find(std::string("\n  ") + name), std::string::npos) << name;
  EXPECT_NE(run_saturate("list options").out.find("train.batch"), std::string::npos);
  EXPECT_EQ(run_saturate("list options --markdown").out, read_text(source_path("docs/recipe.md")));
}

TEST(Command, SynthWritesAFolderAndAnArchiveWithTheSameContents) {
  const TempDir dir;
  const std::string spec = "size=16,count=30,classes=3";
  ASSERT_EQ(run_saturate("data synth " + spec + " --out " + (dir / "set")).exit_code, 0);
  ASSERT_EQ(run_saturate("data synth " + spec + " --out " + (dir / "set.tar")).exit_code, 0);
  for (const std::string& source : {"folder:" + (dir / "set"), "tar:" + (dir / "set.tar")}) {
    const CommandResult seen =
        run_saturate("data inspect " + source + " --json " + (dir / "report.json"));
    ASSERT_EQ(seen.exit_code, 0) << seen.err;
    const auto json = nlohmann::json::parse(read_text(dir / "report.json"));
    EXPECT_EQ(json["samples"], 30);
    EXPECT_EQ(json["jpeg"], 30);
    EXPECT_EQ(json["classes"].size(), 3u);
    EXPECT_EQ(json["width"]["median"], 16);
  }
  expect_error(run_saturate("data synth " + spec + " --out " + (dir / "set")), 2, {dir / "set"});
}

}  // namespace
}  // namespace saturate::testing
