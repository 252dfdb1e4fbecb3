// saturate diagnose and tune, run as commands.
#include <gtest/gtest.h>

#include "app/scratch_folder.h"
#include "tests/app_testing.h"
#include "tests/port_testing.h"
#include "tests/store_testing.h"

namespace saturate::testing {
namespace {

class DiagnoseCommand : public ::testing::Test {
 protected:
  CommandResult diagnose(const std::string& arguments) {
    return run_saturate("diagnose " + recipe + " --scratch " + (dir / "scratch") + " " + arguments);
  }

  TempDir dir;
  std::string recipe = write_small_recipe(dir, kSmallSynth, kSmallSynthTest);
};

TEST_F(DiagnoseCommand, PrintsACauseAndWritesJson) {
  const std::string json_path = dir / "found.json";
  const CommandResult result =
      diagnose("--seconds 3 --rounds 3 --set data.threads=1 --json " + json_path);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(json_path));
  const std::string cause = json["cause"];
  const bool undecided = json["undecided"];
  EXPECT_TRUE(result.out.starts_with((undecided ? "perhaps " : "") + cause + ": ")) << result.out;
  EXPECT_NE(result.out.find(json["evidence"]["summary"].get<std::string>()), std::string::npos);
  EXPECT_GT(json["efficiency"].get<double>(), 0);
  EXPECT_LE(json["efficiency"].get<double>(), 1);
  EXPECT_GT(json["evidence"]["images_per_s"].get<double>(), 0);
  EXPECT_EQ(json["healthy"].get<bool>(), json["fixes"].empty() && !undecided);
  EXPECT_TRUE(json["evidence"]["link"].is_null()) << "the source is not in a store";
  EXPECT_EQ(result.out.find("the network"), std::string::npos) << result.out;
  for (const char* key : {"without_input", "input_alone"}) {
    const auto& ratio = json["evidence"][key];
    EXPECT_LE(ratio["low"].get<double>(), ratio["gain"].get<double>()) << key;
    EXPECT_GE(ratio["high"].get<double>(), ratio["gain"].get<double>()) << key;
  }
  size_t measured = 0;
  for (const char* list : {"fixes", "not_certain", "not_worth_doing"})
    for (const auto& fix : json[list]) {
      ++measured;
      EXPECT_NE(fix["set"].get<std::string>().find('='), std::string::npos);
      if (!fix["measured"].get<bool>()) {  // estimated from the time of one of them
        EXPECT_TRUE(fix["cause"] == "evaluation" || fix["cause"] == "checkpoint-io") << fix;
        continue;
      }
      EXPECT_LE(fix["low"].get<double>(), fix["gain"].get<double>());
      EXPECT_GE(fix["high"].get<double>(), fix["gain"].get<double>());
      EXPECT_NE(result.out.find(fix["set"].get<std::string>()), std::string::npos);
    }
  EXPECT_GT(measured + json["not_measured"].size(), 3u) << result.out;
  const auto& run = json["evidence"]["run"];
  EXPECT_EQ(run["evaluation"]["times"], 2) << "one an epoch";
  EXPECT_GT(run["evaluation"]["seconds"].get<double>(), 0);
  EXPECT_GT(run["seconds"].get<double>(), run["evaluation"]["seconds"].get<double>());
  for (const char* key : {"evaluation", "checkpoints", "records"}) {
    EXPECT_GE(run[key]["share"].get<double>(), 0) << key;
    EXPECT_LT(run[key]["share"].get<double>(), 1) << key;
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "scratch")) << "it removes its files";
}

TEST_F(DiagnoseCommand, ShowsTheLinkOfAStore) {
  for (int i = 0; i < 100; ++i)
    write_file(dir / ("set/" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg"),
               noise_jpeg(64, 64, uint64_t(i)));
  ASSERT_EQ(run_saturate("data pack folder:" + (dir / "set") + " --out shard:" + (dir / "s.shard"))
                .exit_code,
            0);
  StoreServer server;
  server.put("/s.shard", read_text(dir / "s.shard"));
  server.tamper([](const HttpAsk&, HttpAnswer&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  const std::string json_path = dir / "found.json";
  const CommandResult result =
      diagnose("--seconds 3 --rounds 3 --set 'data.source=shard:" + server.url("/s.shard") +
               "?sign=SECRET' --set data.eval_source= --json " + json_path);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_text(json_path).find("SECRET"), std::string::npos);
  const auto evidence = nlohmann::json::parse(read_text(json_path))["evidence"];
  const auto& link = evidence["link"];
  ASSERT_TRUE(link.is_object()) << evidence;
  EXPECT_GT(link["bytes_per_s"].get<double>(), 0);
  EXPECT_GT(link["requests_per_s"].get<double>(), 0);
  EXPECT_GE(link["first_byte_s"].get<double>(), 0.02);
  EXPECT_GE(link["first_byte_s_95"].get<double>(), link["first_byte_s"].get<double>());
  EXPECT_EQ(link["disk_share"].get<double>(), 0);
  EXPECT_GE(link["large_requests"].get<double>(), 1);
  EXPECT_GE(link["half_bytes"].get<double>(), 1);
  EXPECT_LE(link["half_bytes"].get<double>(), 2);
  const size_t line = result.out.find("\n  the network    ");
  ASSERT_NE(line, std::string::npos) << result.out;
  EXPECT_NE(result.out.find(" requests/s; first byte after ", line), std::string::npos);
  const bool is_the_limit = link["at_most"].get<double>() >= 1.1;
  EXPECT_EQ(result.out.find("Set data.cache_dir", line) != std::string::npos, is_the_limit)
      << result.out;
  EXPECT_EQ(result.out.find("it is not the limit", line) != std::string::npos, !is_the_limit)
      << result.out;
}

TEST_F(DiagnoseCommand, NeitherTextNorJsonHasASignature) {
  const CommandResult packed =
      run_saturate("data pack synth:size=16,count=40 --out shard:" + (dir / "s.shard"));
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  StoreServer server;
  server.put("/s.shard", read_text(dir / "s.shard"));
  const CommandResult result =
      diagnose("--seconds 2 --rounds 3 --try 'data.source=shard:" + server.url("/s.shard") +
               "?sig=SECRET' --json " + (dir / "found.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("data.source=shard:" + server.url("/s.shard")), std::string::npos)
      << result.out;
  EXPECT_EQ(result.out.find("SECRET"), std::string::npos) << result.out;
  EXPECT_EQ(result.err.find("SECRET"), std::string::npos) << result.err;
  EXPECT_EQ(read_text(dir / "found.json").find("SECRET"), std::string::npos);
}

TEST_F(DiagnoseCommand, BadUsageIsOneErrorBeforeAnythingRuns) {
  expect_error(diagnose("--rounds 2"), 2, {"--rounds"});
  expect_error(diagnose("--try train.bach=3"), 2, {"train.bach", "train.batch"});
  expect_error(diagnose("--json " + dir.path()), 2, {"a folder cannot be replaced", dir.path()});
  expect_error(diagnose("--json " + (dir / "none/found.json")), 4, {dir / "none/found.json"});
  expect_error(run_saturate("tune " + recipe + " --out " + (dir / "none/t.toml")), 4,
               {dir / "none/t.toml"});
  expect_error(run_saturate("bench step " + recipe + " --json " + (dir / "none/s.json")), 4,
               {dir / "none/s.json"});
  EXPECT_FALSE(std::filesystem::exists(dir / "scratch"));
  expect_error(diagnose("--set data.source=folder:" + (dir / "none")), 3, {dir / "none"});
  expect_error(run_saturate("diagnose " + (dir / "none.toml")), 2, {"none.toml"});
  expect_error(run_saturate("diagnose " + recipe + " --scratch /proc/none"), 4, {"--scratch"});
}

TEST_F(DiagnoseCommand, TuneWritesARecipeThatTrains) {
  const std::string tuned = dir / "tuned.toml", scratch = " --scratch " + (dir / "scratch");
  const CommandResult result =
      run_saturate("tune " + recipe + " --minutes 0.1 --rounds 3 --out " + tuned + scratch);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("in all "), std::string::npos) << result.out;
  EXPECT_TRUE(read_text(tuned).starts_with("# Tuned from " + recipe)) << read_text(tuned);
  const CommandResult trained = run_saturate("train " + tuned + " --quiet --out " + (dir / "run"));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  expect_error(run_saturate("tune " + recipe + " --out " + tuned + scratch), 2, {"exists", tuned});
  EXPECT_FALSE(std::filesystem::exists(dir / "scratch"));
}

TEST_F(DiagnoseCommand, CtrlCQuitsAtOnceAndRemovesItsFiles) {
  const pid_t child = start_saturate(
      {"diagnose", recipe, "--seconds", "3600", "--scratch", dir / "scratch"}, dir / "log");
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(dir / "scratch"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130) << read_text(dir / "log");
  EXPECT_FALSE(std::filesystem::exists(dir / "scratch"));
}

TEST_F(DiagnoseCommand, CtrlCEndsTheWaitForAStoreThatDoesNotAnswer) {
  const TakenPort store;
  const std::string source = "shard:http://127.0.0.1:" + std::to_string(store.number()) + "/a";
  const pid_t child = start_saturate(
      {"diagnose", recipe, "--set", "data.source=" + source, "--scratch", dir / "scratch"},
      dir / "log");
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(dir / "scratch"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child, 60), 130) << read_text(dir / "log");
  EXPECT_FALSE(std::filesystem::exists(dir / "scratch"));
}

TEST(ScratchFolder, LeavesNoFolderThatItMade) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "mine");
  std::filesystem::create_symlink("nowhere", dir / "mine/link");
  {
    const ScratchFolder folder(dir / "mine/a/b");
    EXPECT_TRUE(folder.path().starts_with(dir / "mine/a/b/saturate-bench-")) << folder.path();
    EXPECT_TRUE(std::filesystem::is_directory(folder.path()));
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "mine/a"));
  EXPECT_EQ(error_of([&] { const ScratchFolder folder(dir / "mine/link"); }).kind(),
            ErrorKind::kRun);
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "mine/link"));
  const std::string name(256, 'x');  // longer than a file system accepts
  EXPECT_EQ(error_of([&] { const ScratchFolder folder(dir / "mine/a", name); }).kind(),
            ErrorKind::kRun);
  EXPECT_FALSE(std::filesystem::exists(dir / "mine/a"));
}

}  // namespace
}  // namespace saturate::testing
