// `saturate report` on folders that `saturate train` wrote.
#include <gtest/gtest.h>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

using CommandReport = TrainingTest;

TEST_F(CommandReport, ShowsARunAndComparesTwo) {
  ASSERT_EQ(train("first").exit_code, 0);
  ASSERT_EQ(train("second", {"optimizer.lr=0.01"}).exit_code, 0);
  const CommandResult one = run_saturate("report " + (dir / "first"));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(one.out, "report  " + (dir / "first/report.html") + "\n");
  const std::string page = read_text(dir / "first/report.html");
  for (const char* part : {"<h1>first</h1>", "finished", "Accuracy, held out", "synth:size=16",
                           "data-chart=\"phases:0\"", "libtorch", "Hardware and versions"})
    EXPECT_NE(page.find(part), std::string::npos) << part;

  const CommandResult two = run_saturate("report " + (dir / "first") + " " + (dir / "second") +
                                         " --out " + (dir / "both.html"));
  EXPECT_EQ(two.exit_code, 0) << two.err;
  const std::string both = read_text(dir / "both.html");
  EXPECT_NE(both.find("2 runs compared"), std::string::npos);
  EXPECT_NE(both.find("1 of "), std::string::npos);
}

TEST_F(CommandReport, AFileCutShortIsAWarningOnStderrToo) {
  ASSERT_EQ(train("run", {"train.epochs=0.5"}).exit_code, 0);
  const std::string metrics = read_text(dir / "run/metrics.jsonl");
  write_file(dir / "run/metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  const CommandResult result = run_saturate("report " + (dir / "run"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("saturate: warning: " + (dir / "run") + ": metrics.jsonl ends"),
            std::string::npos)
      << result.err;
  EXPECT_NE(read_text(dir / "run/report.html").find("Not everything could be read"),
            std::string::npos);
}

TEST_F(CommandReport, WhatIsNoRunIsRefused) {
  write_file(dir / "run/metrics.jsonl", "");
  expect_error(run_saturate("report"), 2, {"DIR is required"});
  expect_error(run_saturate("report " + (dir / "none")), 3, {"no such run folder", dir / "none"});
  expect_error(run_saturate("report " + dir.path()), 3, {"holds no metrics.jsonl"});
  expect_error(run_saturate("report " + (dir / "run") + " " + (dir / "run") + "/"), 2,
               {"named twice"});
  expect_error(run_saturate("report " + (dir / "run") + " --out " + dir.path()), 2,
               {"--out is a folder"});
}

TEST_F(CommandReport, ARunSaysWhatItRanOn) {
  ASSERT_EQ(train("run", {"train.epochs=0.1"}).exit_code, 0);
  const auto host = nlohmann::json::parse(read_text(dir / "run/host.json"));
  const std::string env = run_saturate("env").out;
  EXPECT_EQ(count_lines(env), int(host.size()));
  for (const auto& [name, value] : host.items())
    EXPECT_NE(env.find(value.get<std::string>()), std::string::npos) << name;
}

}  // namespace
}  // namespace saturate::testing
