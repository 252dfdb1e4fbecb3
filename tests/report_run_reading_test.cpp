// Reading a run's folder in any state.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "report/report.h"
#include "report/run_extras.h"
#include "tests/fault_env.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::line_of;
using testing::step_line;
using testing::write_file;

using RunReadingTest = testing::RunFolder;

TEST_F(RunReadingTest, ARecordIsReadBackAsWritten) {
  const std::string line = step_line(7, 1.5, 0.25, 1.25);
  EXPECT_EQ(to_json_line(*from_json_line(line)) + "\n", line);
}

TEST_F(RunReadingTest, ATruncatedLineIsSkippedWithAWarning) {
  const std::string cut = step_line(20, 4, 1, 1).substr(0, 40);
  const RunReading run = read(step_line(10, 2, 1, 1) + cut);
  EXPECT_EQ(run.steps.size(), 1u);
  EXPECT_EQ(run.last->step, 10);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_NE(run.warnings[0].find("in the middle of line 2"), std::string::npos) << run.warnings[0];
  EXPECT_EQ(run.state, RunState::kStopped);
}

TEST_F(RunReadingTest, InvalidLinesAreCounted) {
  const RunReading run =
      read("nonsense\n" + step_line(10, 2, 1, 1) + "[1]\n{\"kind\":7}\n" + step_line(20, 4, 1, 1) +
           R"({"kind":"step","step":"30"})"
           "\n"
           R"({"kind":"step","step":123456789012345678901})"
           "\n");
  EXPECT_EQ(run.steps.size(), 2u);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_NE(run.warnings[0].find("5 lines that are not a record (line 1 is the first)"),
            std::string::npos)
      << run.warnings[0];
}

TEST_F(RunReadingTest, BlankLinesAreSkippedSilently) {
  const RunReading run =
      read("\n" + step_line(10, 2, 1, 1) + " \t\r\n\n" + step_line(20, 4, 1, 1) + "\n ");
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.warnings.empty()) << run.warnings[0];
}

TEST_F(RunReadingTest, MissingKeysOfOlderVersionsAndPhasesOfNewerOnesAreAccepted) {
  const RunReading run = read(
      "{\"kind\":\"step\",\"step\":3}\n"
      "{\"kind\":\"step\",\"step\":4,\"time_s\":2,\"loss\":\"high\",\"phases\":{\"wait\":1,"
      "\"prefetch\":0.5}}\n");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_FALSE(run.steps[0].loss || run.steps[0].phases || run.steps[1].loss);
  EXPECT_EQ((*run.steps[1].phases)[Phase::kWait], 1);
  EXPECT_EQ((*run.steps[1].phases)[Phase::kOther], 0.5);
  EXPECT_TRUE(run.warnings.empty());
  EXPECT_NE(make_report({&run, 1}).find("</html>"), std::string::npos);
}

TEST_F(RunReadingTest, ARunningRunIsDistinguishedFromAKilledOne) {
  EXPECT_EQ(read(step_line(10, 2, 1, 1)).state, RunState::kStopped);
  const auto lock = Env::posix().lock(dir / "run/.lock");
  EXPECT_EQ(read(step_line(10, 2, 1, 1)).state, RunState::kRunning);
  EXPECT_EQ(read(line_of("end", 10, 2, 0.5)).state, RunState::kEnded);
}

TEST_F(RunReadingTest, ReadingTakesNoLockAndKeepsItsHoldersId) {
  write_file(dir / "run/.lock", "12345");
  read(step_line(10, 2, 1, 1));
  EXPECT_EQ(testing::read_text(dir / "run/.lock"), "12345");
}

TEST_F(RunReadingTest, AFolderWithoutMetricsIsRefused) {
  std::filesystem::create_directories(dir / "empty");
  const Error error = error_of([&] { read_run(Env::posix(), dir / "empty"); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.reason(), "the folder holds no metrics.jsonl");
  EXPECT_EQ(error_of([&] { read_run(Env::posix(), dir / "none"); }).reason(), "no such run folder");
}

TEST_F(RunReadingTest, DamageInOtherFilesIsAWarning) {
  write_file(dir / "run/recipe.toml", "seed = = 3\n");
  write_file(dir / "run/host.json", "{\"cpu\":");
  const RunReading run = read(step_line(10, 2, 1, 1));
  ASSERT_EQ(run.warnings.size(), 2u);
  EXPECT_NE(run.warnings[0].find("recipe.toml"), std::string::npos);
  EXPECT_NE(run.warnings[1].find("host.json"), std::string::npos);
}

TEST_F(RunReadingTest, AFileThatCannotBeExaminedIsAWarning) {
  read(step_line(10, 2, 1, 1));
  FaultEnv env(Env::posix());
  for (const char* name : {"host.json", "training.json", "trace.json"})
    env.inject({.match = {FileOp::kExamine, name}, .error = EIO});
  EXPECT_EQ(read_run(env, dir / "run").warnings.size(), 3u);
}

// Both would overflow the stack.
TEST_F(RunReadingTest, DeepNestingIsDamage) {
  constexpr size_t kDeep = 1'000'000;
  std::string keys;
  for (size_t i = 0; i < kDeep; ++i) keys += "a.";
  write_file(dir / "run/recipe.toml", keys + "b = 1\n");
  write_file(dir / "run/host.json",
             "{\"a\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + "}");
  const RunReading run = read(step_line(10, 2, 1, 1));
  ASSERT_EQ(run.warnings.size(), 2u);
  EXPECT_NE(run.warnings[0].find("recipe.toml cannot be read"), std::string::npos);
  EXPECT_NE(run.warnings[1].find("host.json cannot be read"), std::string::npos);
}

// A folder from someone else would put any file of the reader into a page that is shared.
TEST_F(RunReadingTest, SymbolicLinksAreNotFollowed) {
  write_file(dir / "private.json", "{\"key\": \"secret\"}");
  write_file(dir / "samples/training.json", "{\"images\": []}");
  std::filesystem::create_directories(dir / "run");
  std::filesystem::create_symlink(dir / "private.json", dir / "run/host.json");
  std::filesystem::create_symlink(dir / "samples", dir / "run/samples");
  const RunReading run = read(step_line(10, 2, 1, 1));
  EXPECT_TRUE(run.host.empty());
  EXPECT_FALSE(run.training);
  ASSERT_EQ(run.warnings.size(), 2u);
  EXPECT_NE(run.warnings[0].find("host.json is not read"), std::string::npos);
  EXPECT_NE(run.warnings[1].find("samples/training.json is not read"), std::string::npos);
  std::filesystem::rename(dir / "run/metrics.jsonl", dir / "metrics.jsonl");
  std::filesystem::create_symlink(dir / "metrics.jsonl", dir / "run/metrics.jsonl");
  EXPECT_EQ(error_of([&] { read_run(Env::posix(), dir / "run"); }).kind(), ErrorKind::kData);
}

// A list may name one image again and again, or sparse files of any size.
TEST_F(RunReadingTest, ImagesAreLimitedInNumberAndSize) {
  const auto kept = [&](size_t bytes, int times) {
    const std::string path = dir / "run/samples/a.png";
    write_file(path, "\x89PNG\r\n\x1a\n");
    std::filesystem::resize_file(path, bytes);
    nlohmann::json list = {{"images", nlohmann::json::array()}};
    for (int i = 0; i < times; ++i) list["images"].push_back({{"file", "a.png"}});
    write_file(dir / "run/samples/training.json", list.dump());
    std::vector<std::string> warnings;
    return read_kept_images(Env::posix(), dir / "run", "training.json", warnings)->images.size();
  };
  EXPECT_EQ(kept(100, 300), 256u);
  EXPECT_EQ(kept(3 << 20, 30), 21u) << "64 MiB";
  EXPECT_EQ(kept(size_t{1} << 33, 1), 0u);
}

TEST_F(RunReadingTest, ARecipesValuesAreReadAsText) {
  const NamedTexts keys = flatten_recipe(
      "seed = 3\n[data]\nsource = 'tar:a'\n[augment]\nmean = [0.1, 1.0]\nflip = true\n", "here");
  const NamedTexts expected = {{"augment.flip", "true"},
                               {"augment.mean", "[0.1, 1]"},
                               {"data.source", "tar:a"},
                               {"seed", "3"}};
  EXPECT_EQ(keys, expected);
}

}  // namespace
}  // namespace saturate
