// `saturate report` on run folders of `saturate train`.
#include <gtest/gtest.h>

#include "tests/app_testing.h"
#include "tests/report_testing.h"

namespace saturate::testing {
namespace {

using CommandReport = TrainingTest;

nlohmann::json shown_in(const std::string& path) {
  return data_of_page(read_text(path));
}

TEST_F(CommandReport, ShowsARunAndComparesTwo) {
  ASSERT_EQ(train("first").exit_code, 0);
  ASSERT_EQ(train("second", {"optimizer.lr=0.01"}).exit_code, 0);
  const CommandResult one = run_saturate("report " + (dir / "first"));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(one.out, "report  " + (dir / "first/report.html") + "\n");
  const auto shown = shown_in(dir / "first/report.html")["runs"][0];
  EXPECT_EQ(shown["name"], "first");
  EXPECT_EQ(shown["state"], "ended");
  EXPECT_EQ(shown["figures"]["held_out"], true);
  EXPECT_GT(shown["figures"]["phases"]["forward"], 0);
  EXPECT_NE(shown["recipe"].dump().find("synth:size=16"), std::string::npos);
  EXPECT_NE(shown["host"].dump().find("libtorch"), std::string::npos);

  const CommandResult two = run_saturate("report " + (dir / "first") + " " + (dir / "second") +
                                         " --out " + (dir / "both.html"));
  EXPECT_EQ(two.exit_code, 0) << two.err;
  const auto runs = shown_in(dir / "both.html")["runs"];
  ASSERT_EQ(runs.size(), 2u);
  int different = 0;
  ASSERT_EQ(runs[0]["recipe"].size(), runs[1]["recipe"].size());
  for (size_t i = 0; i < runs[0]["recipe"].size(); ++i)
    different += runs[0]["recipe"][i] != runs[1]["recipe"][i];
  EXPECT_EQ(different, 1);
}

TEST_F(CommandReport, ATruncatedFileIsAWarningOnStderrToo) {
  ASSERT_EQ(train("run", {"train.epochs=0.5"}).exit_code, 0);
  const std::string metrics = read_text(dir / "run/metrics.jsonl");
  write_file(dir / "run/metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  const CommandResult result = run_saturate("report " + (dir / "run"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("saturate: warning: " + (dir / "run") + ": metrics.jsonl ends"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(shown_in(dir / "run/report.html")["runs"][0]["warnings"].size(), 1u);
}

TEST_F(CommandReport, ShowsALaddersJsonAloneAndWithARun) {
  write_file(dir / "ladder.json",
             R"({"title": "<i>threads", "rungs": [{"name": "one", "images_per_s": 100.0},
                 {"name": "gpu", "skipped": "needs a <GPU>"}]})");
  const CommandResult alone =
      run_saturate("report " + (dir / "ladder.json") + " --out " + (dir / "ladder.html"));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  const auto ladder = shown_in(dir / "ladder.html")["ladders"][0];
  EXPECT_EQ(ladder["title"], "<i>threads");
  EXPECT_EQ(ladder["rungs"][0]["images_per_s"], 100);
  EXPECT_EQ(ladder["rungs"][1]["skipped"], "needs a <GPU>");

  ASSERT_EQ(train("run", {"train.epochs=0.5"}).exit_code, 0);
  const CommandResult both = run_saturate("report " + (dir / "run") + " " + (dir / "ladder.json"));
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, "report  " + (dir / "run/report.html") + "\n");
  const auto shown = shown_in(dir / "run/report.html");
  EXPECT_EQ(shown["runs"].size(), 1u);
  EXPECT_EQ(shown["ladders"][0], ladder);

  write_file(dir / "none.json", "{\"rungs\": []}");
  expect_error(run_saturate("report " + (dir / "none.json")), 3, {"not JSON of a ladder or sweep"});
  write_file(dir / "broken.json", "{\"rungs\": [");
  expect_error(run_saturate("report " + (dir / "broken.json")), 3,
               {"not JSON of a ladder or sweep"});
}

TEST_F(CommandReport, ShowsSamplesOfARun) {
  ASSERT_EQ(train("run", {"train.epochs=0.5", "watch.trace=steps:2-4", "watch.telemetry_hz=100"})
                .exit_code,
            0);
  ASSERT_EQ(run_saturate("report " + (dir / "run")).exit_code, 0);
  const auto shown = shown_in(dir / "run/report.html")["runs"][0];
  EXPECT_EQ(shown["trace"]["steps"], 3);
  EXPECT_EQ(shown["training"]["step"], 1);
  const std::string uri = shown["training"]["images"][0]["uri"];
  EXPECT_TRUE(uri.starts_with("data:image/png;base64,")) << uri;
  EXPECT_TRUE(shown["steps"].contains("tflop_per_s"));
  EXPECT_NE(shown["mistakes"]["images"][0]["predicted"], "");
}

TEST_F(CommandReport, AFileThatIsNotAReportIsNotReplaced) {
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
  for (const char* name :
       {"new", "new", "empty", "mine.html"}) {  // the second report replaces the first
    const CommandResult result = report(dir / name);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(read_text(dir / name).starts_with("<!DOCTYPE html>")) << name;
  }
  expect_error(report(dir / "short"), 2, {"not an HTML page"});
  std::filesystem::create_symlink(dir / "short", dir / "link.html");
  expect_error(report(dir / "link.html"), 2, {"not an HTML page"});
  std::filesystem::create_symlink(dir / "short", run + "/report.html");
  expect_error(run_saturate("report " + run), 2, {"symbolic link", run + "/report.html"});
  EXPECT_EQ(read_text(dir / "short"), "<!");
  const std::string nowhere = dir / "none/page.html";
  expect_error(report(nowhere), 4, {"cannot create", "(" + nowhere + ")"});
}

TEST_F(CommandReport, AFolderWithoutARunIsRefused) {
  write_file(dir / "run/metrics.jsonl", "");
  expect_error(run_saturate("report"), 2, {"DIR is required"});
  expect_error(run_saturate("report " + (dir / "none")), 3, {"no such run folder", dir / "none"});
  expect_error(run_saturate("report " + dir.path()), 3, {"holds no metrics.jsonl"});
  expect_error(run_saturate("report " + (dir / "run") + " " + (dir / "run") + "/"), 2,
               {"given twice"});
  expect_error(run_saturate("report " + (dir / "run") + " --out " + dir.path()), 2,
               {"the report's file is a folder"});
}

TEST_F(CommandReport, ShowsTheMachineOfARun) {
  ASSERT_EQ(train("run", {"train.epochs=0.1"}).exit_code, 0);
  const auto host = nlohmann::json::parse(read_text(dir / "run/host.json"));
  const std::string env = run_saturate("env").out;
  EXPECT_EQ(count_lines(env), int(host.size()));
  for (const auto& [name, value] : host.items())
    EXPECT_NE(env.find(value.get<std::string>()), std::string::npos) << name;
}

}  // namespace
}  // namespace saturate::testing
