// saturate ladder and sweep, run as commands.
#include "advise/ladder.h"
#include "base/system_file.h"
#include "tests/app_testing.h"
#include "tests/paths.h"

namespace saturate::testing {
namespace {

using nlohmann::json;

class LadderCommand : public TrainingTest {
 protected:
  LadderCommand() { setenv("TMPDIR", (dir / "tmp").c_str(), 1); }
  ~LadderCommand() override { unsetenv("TMPDIR"); }
  void SetUp() override {
#ifndef NDEBUG
    GTEST_SKIP() << "a debug build refuses";
#endif
    std::filesystem::create_directories(dir / "tmp");
  }

  // A ladder over the small recipe: its path.
  std::string ladder(const std::string& rest) {
    write_file(dir / "l.toml", "title = \"Small\"\nrecipe = \"small.toml\"\n" + rest);
    return dir / "l.toml";
  }
  bool left_files() {
    return !std::filesystem::is_empty(dir / "tmp");
  }
};

constexpr const char* kQuick = " --rounds 2 --seconds 0.05";

TEST_F(LadderCommand, MeasuresRungsThatCanRunAndNamesTheOthers) {
  const std::string path = ladder(
      "[[pack]]\nsource = \"synth:size=16,count=100\"\nout = \"lmdb:{scratch}/l\"\n"
      "[[rung]]\nname = \"drawn\"\nseed_figure = \"2 steps/s\"\n"
      "[[rung]]\nname = \"packed\"\nset = [\"data.source=lmdb:{scratch}/l\", "
      "\"data.cache=ram\"]\nseed_figure = \"3 steps/s\"\n"
      "[[rung]]\nname = \"many\"\nneeds = \"nodes>=9\"\n");
  const CommandResult result = run_saturate("ladder " + path + kQuick + " --json " +
                                            (dir / "l.json") + " --markdown " + (dir / "l.md"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"Small\n", "over previous", "3 steps/s (+50.0 %)", "where time goes",
                           "many: needs nodes>=9 (here 1)", "GiB"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in " << result.out;
  const json rungs = json::parse(read_text(dir / "l.json"))["rungs"];
  ASSERT_EQ(rungs.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(rungs[i]["steps_per_s"].get<double>(), 0);
    EXPECT_NEAR(rungs[i]["images_per_s"].get<double>() / rungs[i]["steps_per_s"].get<double>(), 20,
                0.5);
    EXPECT_EQ(rungs[i]["n"], 2);
    double shares = 0;
    for (const auto& [name, share] : rungs[i]["phases"].items()) shares += share.get<double>();
    EXPECT_NEAR(shares, 1, 1e-6);
    EXPECT_GT(rungs[i]["memory_peak_bytes"].get<int64_t>(), 1 << 20);
    EXPECT_GT(rungs[i]["tensor_peak_bytes"].get<int64_t>(), 1 << 10);
  }
  EXPECT_TRUE(rungs[2]["steps_per_s"].is_null());
  EXPECT_EQ(read_text(dir / "l.md").substr(0, 9), "## Small\n");
  EXPECT_FALSE(left_files());
}

TEST_F(LadderCommand, SweepsOverAGridAndAFailingPointIsSkipped) {
  const CommandResult result =
      run_saturate("sweep " + recipe + kQuick + " --set optimizer.momentum=0.5" +
                   " --over train.batch=10,20 --over train.memory_gb=0,0.0005 --json " +
                   (dir / "s.json") + " --markdown " + (dir / "s.md"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json found = json::parse(read_text(dir / "s.json")), rungs = found["rungs"];
  EXPECT_EQ(found["set"], json::array({"optimizer.momentum=0.5"}));
  EXPECT_EQ(found["unit"], "images");
  EXPECT_NE(read_text(dir / "s.md").find("All rungs with `optimizer.momentum=0.5`,"),
            std::string::npos);
  ASSERT_EQ(rungs.size(), 4u);
  EXPECT_EQ(rungs[1]["name"], "train.batch=10 train.memory_gb=0.0005");
  EXPECT_EQ(rungs[2]["set"], json({"train.batch=20", "train.memory_gb=0"}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rungs[i]["skipped"].is_null(), i % 2 == 0) << i;
  EXPECT_NE(rungs[1]["skipped"].get<std::string>().find("out of memory"), std::string::npos);
  EXPECT_GT(rungs[2]["gain_first"].get<double>(), 0);
}

TEST_F(LadderCommand, AMissingTemporaryFolderIsNamed) {
  const std::string path = ladder("[[rung]]\nname = \"drawn\"\n");
  expect_error(run_saturate("ladder " + path + kQuick, "TMPDIR=" + (dir / "none")), 4,
               {"folder for temporary files", "TMPDIR=" + (dir / "none"), "Set TMPDIR"});
}

TEST_F(LadderCommand, MistakesAreFoundBeforeAnythingRuns) {
  expect_error(run_saturate("ladder " + (dir / "none.toml")), 2, {"none.toml"});
  expect_error(run_saturate("ladder " + ladder("[[rung]]\nname = \"a\"\nset = [\"train.bach=1\"]")),
               2, {"l.toml:3, rung \"a\"", "train.bach", "Did you mean train.batch?"});
  expect_error(
      run_saturate("ladder " + ladder("[[rung]]\nname = \"a\"\n") + " --json " + dir.path()), 2,
      {"a folder cannot be replaced", dir.path()});
  expect_error(run_saturate("sweep " + recipe + " --over train.batch=10,20 --json " + (dir / "x") +
                            " --markdown " + (dir / "./x")),
               2, {"two results have the same file", dir / "./x"});
  expect_error(run_saturate("sweep " + recipe + " --over train.batch=10,20 --markdown " +
                            (dir / "none/l.md")),
               4, {dir / "none/l.md"});
  expect_error(run_saturate("sweep " + recipe + " --over train.batch=1,no"), 2,
               {"point train.batch=no", "train.batch"});
  expect_error(run_saturate("sweep " + recipe), 2, {"--over"});
  EXPECT_FALSE(left_files());
}

TEST_F(LadderCommand, MissingDataEndTheLadderAndNameTheRung) {
  const std::string path = ladder(
      "[[rung]]\nname = \"a\"\n"
      "[[rung]]\nname = \"b\"\nset = [\"data.source=folder:/none\"]\n");
  expect_error(run_saturate("ladder " + path + kQuick), 3, {"rung \"b\"", "/none"});
  EXPECT_FALSE(left_files());
}

TEST_F(LadderCommand, AnInterruptPrintsFinishedResultsAndRemovesItsFiles) {
  const std::string path = ladder("[[rung]]\nname = \"a\"\n[[rung]]\nname = \"b\"\n");
  const pid_t child = start_saturate(
      {"ladder", path, "--rounds", "1000", "--seconds", "0.1", "--json", dir / "l.json"},
      dir / "log");
  ASSERT_TRUE(wait_until([&] { return left_files(); }));
  // Wait until both rungs run: each then has a folder.
  ASSERT_TRUE(wait_until([&] {
    size_t runs = 0;
    std::error_code gone;  // files are created and removed meanwhile
    for (auto at = std::filesystem::recursive_directory_iterator(dir / "tmp", gone);
         at != std::filesystem::recursive_directory_iterator(); at.increment(gone))
      runs += at->path().filename() == "metrics.jsonl";
    return runs == 2;
  }));
  const auto rungs = children_of(child);
  EXPECT_FALSE(rungs.empty());
  for (const pid_t rung : rungs) {
    const std::string status = "/proc/" + std::to_string(rung) + "/status";
    const uint64_t ignored = std::strtoull(system_line(status, "SigIgn").c_str(), nullptr, 16);
    EXPECT_NE((ignored >> (SIGTTOU - 1)) & 1, 0u) << "with `stty tostop`, output would stop it";
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130);
  EXPECT_TRUE(json::parse(read_text(dir / "l.json"))["interrupted"].get<bool>());
  EXPECT_FALSE(left_files());
}

// ---- In several processes ----------------------------------------------------------------------

constexpr const char* kRungsOfTwo =
    "[[rung]]\nname = \"one\"\n"
    "[[rung]]\nname = \"two\"\nprocesses = 2\n"
    "[[rung]]\nname = \"and gloo\"\nset = [\"distributed.backend=gloo\"]\n"
    "[[rung]]\nname = \"four\"\nfrom = \"base\"\nprocesses = 4\n";

TEST_F(LadderCommand, LaunchedInTwoProcessesRunsRungsOfTwo) {
  const CommandResult result =
      run_saturate("launch --nproc-per-node 2 -- ladder " + ladder(kRungsOfTwo) + kQuick +
                   " --json " + (dir / "l.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("four: needs processes>=4 (here 2)"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("Small\n"), result.out.rfind("Small\n"))
      << "only one of the two prints";
  EXPECT_EQ(result.err.find("has not moved"), std::string::npos) << result.err;
  const json rungs = json::parse(read_text(dir / "l.json"))["rungs"];
  ASSERT_EQ(rungs.size(), 4u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(rungs[i]["skipped"].is_null()) << i << rungs[i]["skipped"];
    EXPECT_EQ(rungs[i]["processes"], i == 0 ? 1 : 2) << i;
    EXPECT_EQ(rungs[i]["n"], 2) << i;
    // It is the global batch.
    EXPECT_NEAR(rungs[i]["images_per_s"].get<double>() / rungs[i]["steps_per_s"].get<double>(), 20,
                0.5)
        << i;
    EXPECT_EQ(rungs[i]["phases"].contains("reduce"), i > 0) << i;
    EXPECT_GT(rungs[i]["cores_used"].get<double>(), 0) << i;
    EXPECT_GT(rungs[i]["gain_first"].get<double>(), 0) << i;
  }
  // Each process holds the program and its libraries in memory, whatever it trains.
  EXPECT_GT(rungs[1]["memory_peak_bytes"].get<double>(),
            1.5 * rungs[0]["memory_peak_bytes"].get<double>());
  EXPECT_FALSE(left_files());
}

TEST_F(LadderCommand, AFailingRungOfTwoProcessesIsSkippedAndTheOthersContinue) {
  const std::string path = ladder(
      "[[rung]]\nname = \"one\"\n"
      "[[rung]]\nname = \"two\"\nprocesses = 2\nset = [\"train.memory_gb=0.0005\"]\n"
      "[[rung]]\nname = \"and more\"\nset = [\"train.memory_gb=0\"]\n");
  const CommandResult result = run_saturate("launch --nproc-per-node 2 -- ladder " + path + kQuick +
                                            " --json " + (dir / "l.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json rungs = json::parse(read_text(dir / "l.json"))["rungs"];
  EXPECT_TRUE(rungs[0]["skipped"].is_null());
  EXPECT_NE(rungs[1]["skipped"].dump().find("out of memory"), std::string::npos)
      << rungs[1]["skipped"];
  EXPECT_TRUE(rungs[2]["skipped"].is_null()) << rungs[2]["skipped"];
  EXPECT_FALSE(left_files());
}

TEST_F(LadderCommand, AnInterruptOfSeveralProcessesEndsAllOfThem) {
  const pid_t child =
      start_saturate({"launch", "--nproc-per-node", "2", "--", "ladder", ladder(kRungsOfTwo),
                      "--rounds", "1000", "--seconds", "0.1", "--json", dir / "l.json"},
                     dir / "log");
  // A rung's folder is created in its set-up: wait for the last one's.
  const auto is_set_up = [&] {
    std::error_code gone;  // files are created and removed meanwhile
    for (auto at = std::filesystem::recursive_directory_iterator(dir / "tmp", gone);
         at != std::filesystem::recursive_directory_iterator(); at.increment(gone))
      if (at->path().parent_path().filename() == "rung-3") return true;
    return false;
  };
  EXPECT_TRUE(wait_until(is_set_up)) << read_text(dir / "log");
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130) << read_text(dir / "log");
  EXPECT_TRUE(json::parse(read_text(dir / "l.json"))["interrupted"].get<bool>());
  EXPECT_FALSE(left_files());
}

// ---- The shipped ladders -----------------------------------------------------------------------

struct Shipped {
  const char* name;
  const char* small;  // settings that make its steps short
};

class ShippedLadder : public LadderCommand, public ::testing::WithParamInterface<Shipped> {};

TEST_P(ShippedLadder, RunsToTheEnd) {
  if (testing::kSanitized && std::string(GetParam().name) != "scale-out")
    GTEST_SKIP() << "takes minutes under a sanitizer, and runs no code that other tests do not";
  const std::string launch =
      std::string(GetParam().name) == "scale-out" ? "launch --nproc-per-node 2 -- " : "";
  const CommandResult result = run_saturate(
      launch + "ladder " + source_path(std::string("ladders/") + GetParam().name + ".toml") +
      " --rounds 1 --seconds 0.01 --set train.threads=1 " + GetParam().small + " --json " +
      (dir / "l.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json rungs = json::parse(read_text(dir / "l.json"))["rungs"];
  ASSERT_GE(rungs.size(), 3u);
  EXPECT_TRUE(rungs[0]["skipped"].is_null()) << rungs[0]["skipped"];
  for (const auto& rung : rungs) {
    if (rung["skipped"].is_null())
      EXPECT_GT(rung["images_per_s"].get<double>(), 0) << rung["name"];
    else
      EXPECT_TRUE(rung["skipped"].get<std::string>().starts_with("needs ")) << rung.dump();
  }
  EXPECT_FALSE(left_files());
}

INSTANTIATE_TEST_SUITE_P(
    All, ShippedLadder,
    ::testing::Values(Shipped{"storage", ""}, Shipped{"augment-offload", ""},
                      Shipped{"frozen-encoder", "--set model.width=0.25 --set train.batch=2"},
                      Shipped{"free-speed", "--set train.batch=8"},
                      Shipped{"scale-out", "--set train.batch=16"},
                      Shipped{"attention", "--set train.batch=2 --set model.width=0.34"}),
    [](const auto& shipped) {
      std::string name = shipped.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(ShippedLadders, AllAreRun) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("ladders")))
    count += entry.path().extension() == ".toml";
  EXPECT_EQ(count, 6u) << "add the new one to ShippedLadder, and to docs/ladder.md";
}

// As the kernel's out-of-memory killer does.
TEST(ProcessMeasurer, AKilledProcessIsAFailedRun) {
  const TempDir dir;
  ProcessMeasurerOptions options;
  options.program = kCommand;
  options.folder = dir.path();
  options.seconds = 0.01;
  const auto measurer = make_process_measurer(Env::posix(), options);
  const Recipe recipe = load_recipe(Env::posix(), write_small_recipe(dir, kSmallSynth));
  ASSERT_TRUE(measurer->start(0, recipe));
  const std::string self = std::to_string(getpid());
  const int child = std::atoi(read_text("/proc/self/task/" + self + "/children").c_str());
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  const Error error = error_of([&] { measurer->measure(0, 0.01); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(error.reason().find("was killed"), std::string::npos) << error.reason();
  ASSERT_TRUE(measurer->start(1, recipe));
  EXPECT_GT(measurer->measure(1, 0.01)->steps.samples, 0);
}

}  // namespace
}  // namespace saturate::testing
