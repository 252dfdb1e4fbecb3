// The command line: help, lists, and making datasets.
#include <gtest/gtest.h>
#include <torch/version.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

TEST(Command, HelpListsEveryCommandAndEachHasItsOwn) {
  const CommandResult help = run_saturate("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* command : {"train", "launch", "eval", "data", "bench", "diagnose", "tune",
                              "ladder", "sweep", "report", "export", "list", "env", "completion"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const CommandResult own = run_saturate(std::string(command) + " --help");
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_NE(own.out.find("--help"), std::string::npos);
  }
}

TEST(Command, AMisspeltCommandIsNamedWithTheNearestOne) {
  expect_error(run_saturate("trian recipe.toml"), 2, {"trian", "train"});
  expect_error(run_saturate("data pakc x"), 2, {"pakc", "pack", "(data)"});
  expect_error(run_saturate(""), 2, {"--help"});
}

TEST(Command, JsonMessagesAreOneObjectALine) {
  const TempDir dir;
  const std::string train = "train " + write_small_recipe(dir, kSmallSynth) +
                            " --set train.epochs=1 --out " + (dir / "run");
  for (const std::string& command : {train + " --log-format json", "--log-format=json " + train,
                                     train + " --log-format=json --set no.such_key=1"}) {
    std::filesystem::remove_all(dir / "run");
    const CommandResult result = run_saturate(command);
    std::istringstream lines(result.err);
    std::string line, level;
    for (int count = 0; std::getline(lines, line); ++count) {
      const auto json = nlohmann::json::parse(line);
      level = json.at("level");
      EXPECT_FALSE(json.at("message").get<std::string>().empty());
      EXPECT_EQ(json.at("time").get<std::string>().size(), 24u) << line;
    }
    EXPECT_EQ(level, result.exit_code == 0 ? "info" : "error") << result.err;
    EXPECT_EQ(result.exit_code, command.ends_with("=1") ? 2 : 0) << result.err;
  }
  const CommandResult several =
      run_saturate("launch --nproc-per-node 2 -- " + train + " --set train.threads=1",
                   "SATURATE_LOG_FORMAT=json");
  EXPECT_EQ(several.exit_code, 0) << several.err;
  std::istringstream lines(several.err);
  std::set<int> ranks;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("rank")) ranks.insert(json["rank"].get<int>());
  }
  EXPECT_TRUE(ranks.contains(0)) << several.err;
  expect_error(run_saturate("env --log-format xml"), 2, {"unknown log format \"xml\"", "json"});
  expect_error(run_saturate("env --log-format"), 2, {"unknown log format \"\""});
}

TEST(Command, AShippedRecipeNeedsNoPath) {
  const TempDir dir;
  const CommandResult named =
      run_saturate("train demo --print-recipe --set data.threads=1", "cd " + dir.path() + ";");
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(named.out, run_saturate("train " + source_path("recipes/demo.toml") +
                                    " --print-recipe --set data.threads=1")
                           .out);
  std::filesystem::create_directory(dir / "demo");  // the user's own file takes precedence
  expect_error(run_saturate("train demo --print-recipe", "cd " + dir.path() + ";"), 3, {"demo"});
  expect_error(run_saturate("train no-such"), 2, {"no-such", "saturate list recipes"});
  const CommandResult list = run_saturate("list recipes");
  EXPECT_NE(list.out.find("  demo            Trains a small network"), std::string::npos)
      << list.out;
  EXPECT_NE(list.out.find("ladders\n"), std::string::npos);
}

TEST(Command, CompletionsAndTheManPageNameEveryCommand) {
  for (const char* what : {"bash", "zsh", "fish", "man"}) {
    const CommandResult page = run_saturate(std::string("completion ") + what);
    EXPECT_EQ(page.exit_code, 0) << page.err;
    for (const char* name : {"train", "inspect", "best", "set"})
      EXPECT_NE(page.out.find(name), std::string::npos) << what << " lacks " << name;
    EXPECT_EQ(page.out.find("measure-rung"), std::string::npos)
        << what << " shows a hidden command";
  }
  EXPECT_EQ(std::system(("'" + std::string(kCommand) + "' completion bash | bash -n").c_str()), 0);
  const std::string offer =
      "COMP_WORDS=(saturate train --log-format j); COMP_CWORD=3; _saturate; "
      "[ \"${COMPREPLY[*]}\" = json ]";
  EXPECT_EQ(std::system(("bash -c 'eval \"$(\"" + std::string(kCommand) +
                         "\" completion bash)\"; " + offer + "'")
                            .c_str()),
            0);
  EXPECT_NE(run_saturate("completion fish").out.find("-l log-format -r -f -a 'text json'"),
            std::string::npos);
}

TEST(Command, VersionAndEnvironmentArePrinted) {
  EXPECT_NE(run_saturate("--version").out.find("saturate 0."), std::string::npos);
  const CommandResult env = run_saturate("env");
  EXPECT_EQ(env.exit_code, 0);
  for (const char* fact : {"libtorch      " TORCH_VERSION, "cores", "simd", "gpus"})
    EXPECT_NE(env.out.find(fact), std::string::npos) << fact;
}

TEST(Command, ComputeThreadsSleepSoonUnlessTheUserSetsOtherwise) {
  const auto waits = [](const std::string& before) {
    const std::string out = run_saturate("env", "env -u GOMP_SPINCOUNT " + before).out;
    const auto at = out.find("openmp waits");
    return at == std::string::npos ? out : out.substr(at, out.find('\n', at) - at);
  };
  EXPECT_EQ(waits(""), "openmp waits  GOMP_SPINCOUNT=2000");
  EXPECT_EQ(waits("GOMP_SPINCOUNT=7"), "openmp waits  GOMP_SPINCOUNT=7");
  EXPECT_EQ(waits("OMP_WAIT_POLICY=active"), "openmp waits  OMP_WAIT_POLICY=active");
}

TEST(Command, ListPrintsTheNamesThatARecipeAccepts) {
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
