// saturate ladder and sweep, whole.
#include "saturate/ladder.h"
#include "tests/app_testing.h"

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
  bool left_anything() {
    return !std::filesystem::is_empty(dir / "tmp");
  }
};

constexpr const char* kQuick = " --rounds 2 --seconds 0.05";

TEST_F(LadderCommand, MeasuresWhatItCanAndSaysWhatItCannot) {
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
  EXPECT_FALSE(left_anything());
}

TEST_F(LadderCommand, SweepsOverAGridAndAPointThatFailsIsOne) {
  const CommandResult result = run_saturate(
      "sweep " + recipe + kQuick +
      " --over train.batch=10,20 --over train.memory_gb=0,0.0005 --json " + (dir / "s.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json rungs = json::parse(read_text(dir / "s.json"))["rungs"];
  ASSERT_EQ(rungs.size(), 4u);
  EXPECT_EQ(rungs[1]["name"], "train.batch=10 train.memory_gb=0.0005");
  EXPECT_EQ(rungs[2]["set"], json({"train.batch=20", "train.memory_gb=0"}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rungs[i]["skipped"].is_null(), i % 2 == 0) << i;
  EXPECT_NE(rungs[1]["skipped"].get<std::string>().find("out of memory"), std::string::npos);
  EXPECT_GT(rungs[2]["gain_first"].get<double>(), 0);
}

TEST_F(LadderCommand, MistakesAreFoundBeforeAnythingRuns) {
  expect_error(run_saturate("ladder " + (dir / "none.toml")), 2, {"none.toml"});
  expect_error(run_saturate("ladder " + ladder("[[rung]]\nname = \"a\"\nset = [\"train.bach=1\"]")),
               2, {"l.toml:3, rung \"a\"", "train.bach", "Did you mean train.batch?"});
  expect_error(
      run_saturate("ladder " + ladder("[[rung]]\nname = \"a\"\n") + " --json " + dir.path()), 2,
      {"cannot replace a folder", dir.path()});
  expect_error(run_saturate("sweep " + recipe + " --over train.batch=1,no"), 2,
               {"point train.batch=no", "train.batch"});
  expect_error(run_saturate("sweep " + recipe), 2, {"--over"});
  EXPECT_FALSE(left_anything());
}

TEST_F(LadderCommand, DataThatIsNotThereEndsItNamingTheRung) {
  const std::string path = ladder(
      "[[rung]]\nname = \"a\"\n"
      "[[rung]]\nname = \"b\"\nset = [\"data.source=folder:/none\"]\n");
  expect_error(run_saturate("ladder " + path + kQuick), 3, {"rung \"b\"", "/none"});
  EXPECT_FALSE(left_anything());
}

TEST_F(LadderCommand, AnInterruptPrintsWhatThereIsAndLeavesNothingBehind) {
  const std::string path = ladder("[[rung]]\nname = \"a\"\n[[rung]]\nname = \"b\"\n");
  const pid_t child = start_saturate(
      {"ladder", path, "--rounds", "1000", "--seconds", "0.1", "--json", dir / "l.json"},
      dir / "log");
  ASSERT_TRUE(wait_until([&] { return left_anything(); }));
  // Until both rungs run: each has a folder of its own once it is set up.
  ASSERT_TRUE(wait_until([&] {
    size_t runs = 0;
    std::error_code gone;  // files come and go meanwhile
    for (auto at = std::filesystem::recursive_directory_iterator(dir / "tmp", gone);
         at != std::filesystem::recursive_directory_iterator(); at.increment(gone))
      runs += at->path().filename() == "metrics.jsonl";
    return runs == 2;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130);
  EXPECT_TRUE(json::parse(read_text(dir / "l.json"))["interrupted"].get<bool>());
  EXPECT_FALSE(left_anything());
}

// As the system does when memory runs out.
TEST(ProcessMeasurer, AProcessThatIsKilledIsARunThatFailed) {
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
