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

TEST_F(CommandReport, ShowsALaddersJsonAloneAndBesideARun) {
  write_file(dir / "ladder.json",
             R"({"title": "<i>threads", "rungs": [{"name": "one", "images_per_s": 100.0},
                 {"name": "gpu", "skipped": "needs a <GPU>"}]})");
  const CommandResult alone =
      run_saturate("report " + (dir / "ladder.json") + " --out " + (dir / "ladder.html"));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  const std::string page = read_text(dir / "ladder.html");
  for (const char* part :
       {"<h1>&lt;i&gt;threads</h1>", "data-chart=\"ladder:0\"", "skipped: needs a &lt;GPU&gt;"})
    EXPECT_NE(page.find(part), std::string::npos) << part;

  ASSERT_EQ(train("run", {"train.epochs=0.5"}).exit_code, 0);
  const CommandResult both = run_saturate("report " + (dir / "run") + " " + (dir / "ladder.json"));
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, "report  " + (dir / "run/report.html") + "\n");
  EXPECT_NE(read_text(dir / "run/report.html").find("data-chart=\"ladder:0\""), std::string::npos);

  write_file(dir / "none.json", "{\"rungs\": []}");
  expect_error(run_saturate("report " + (dir / "none.json")), 3, {"not JSON of a ladder or sweep"});
  write_file(dir / "broken.json", "{\"rungs\": [");
  expect_error(run_saturate("report " + (dir / "broken.json")), 3,
               {"not JSON of a ladder or sweep"});
}

TEST_F(CommandReport, ShowsWhatARunKept) {
  ASSERT_EQ(train("run", {"train.epochs=0.5", "watch.trace=steps:2-4", "watch.telemetry_hz=100"})
                .exit_code,
            0);
  ASSERT_EQ(run_saturate("report " + (dir / "run")).exit_code, 0);
  const std::string page = read_text(dir / "run/report.html");
  for (const char* part :
       {"3 traced steps", "data-timeline=\"0\"", "The first images of step 1",
        "src=\"data:image/png;base64,", "data-chart=\"tflop_per_s\"", "taken for "})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST_F(CommandReport, AFileThatIsNotAPageIsNotReplaced) {
  ASSERT_EQ(train("run", {"train.epochs=0.5"}).exit_code, 0);
  const std::string run = dir / "run", records = read_text(run + "/metrics.jsonl");
  const auto report = [&](const std::string& out) {
    return run_saturate("report " + run + " --out " + out);
  };
  for (const char* name : {"/metrics.jsonl", "/recipe.toml"})
    expect_error(report(run + name), 2, {"not an HTML page", run + name, ".html"});
  EXPECT_EQ(read_text(run + "/metrics.jsonl"), records);
  write_file(dir / "empty", "");
  write_file(dir / "mine.html", "notes");
  write_file(dir / "short", "<!");
  for (const char* name : {"new", "new", "empty", "mine.html"}) {  // the second replaces the first
    const CommandResult result = report(dir / name);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(read_text(dir / name).starts_with("<!DOCTYPE html>")) << name;
  }
  expect_error(report(dir / "short"), 2, {"not an HTML page"});
}

TEST_F(CommandReport, WhatIsNoRunIsRefused) {
  write_file(dir / "run/metrics.jsonl", "");
  expect_error(run_saturate("report"), 2, {"DIR is required"});
  expect_error(run_saturate("report " + (dir / "none")), 3, {"no such run folder", dir / "none"});
  expect_error(run_saturate("report " + dir.path()), 3, {"holds no metrics.jsonl"});
  expect_error(run_saturate("report " + (dir / "run") + " " + (dir / "run") + "/"), 2,
               {"given twice"});
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
