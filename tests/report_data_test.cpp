// The report's JSON document, and the page's safety.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/report.h"
#include "saturate/data/recipe.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::data_of_page;
using testing::kTwoEpochs;
using testing::RunFolder;
using testing::step_line;
using testing::write_file;

class ReportTest : public RunFolder {
 protected:
  std::string report(const std::vector<std::string>& names) {
    std::vector<RunReading> runs;
    for (const auto& name : names) runs.push_back(read_run(Env::posix(), dir / name));
    return make_report(runs);
  }
  json data(const std::vector<std::string>& names) { return data_of_page(report(names)); }
  json run(const std::string& name) { return data({name})["runs"][0]; }
};

TEST_F(ReportTest, NoTextOfAHostileRunBecomesMarkup) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"";
  const std::string folder = dir / "<img src=x onerror=alert(3)>";
  write_file(folder + "/metrics.jsonl", kTwoEpochs);
  write_file(folder + "/recipe.toml", "[data]\nsource = '''" + evil + "'''\n\"<i>\" = 1\n");
  write_file(folder + "/host.json", json{{"<u>", evil}}.dump());
  const RunReading run = read_run(Env::posix(), folder);
  const std::string page = make_report({&run, 1});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<i>"), std::string::npos);
  EXPECT_EQ(page.find("<u>"), std::string::npos);
  const json shown = data_of_page(page)["runs"][0];
  EXPECT_EQ(shown["name"], "<img src=x onerror=alert(3)>");
  const NamedTexts recipe = {{"data.<i>", "1"}, {"data.source", evil}}, host = {{"<u>", evil}};
  EXPECT_EQ(shown["recipe"], json(recipe));
  EXPECT_EQ(shown["host"], json(host));
}

TEST_F(ReportTest, ThePageNamesNoOtherHost) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  const std::string page = report({"run"});
  EXPECT_EQ(page.find("src=\"http"), std::string::npos);
  EXPECT_EQ(page.find("href=\"http"), std::string::npos);
  EXPECT_EQ(page.find("sourceMappingURL"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("Chart.js v3"), std::string::npos);
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos);
  EXPECT_NE(page.find("<noscript><p class=\"note\">This report needs JavaScript"),
            std::string::npos);
}

TEST_F(ReportTest, ARunWithoutStepsHasNoFigures) {
  write_file(dir / "run/metrics.jsonl", "");
  const json shown = run("run");
  EXPECT_EQ(shown["state"], "stopped");
  for (const char* key : {"steps", "evaluations"}) EXPECT_EQ(shown[key], json::object()) << key;
  for (const char* key : {"accuracy", "loss", "phases", "telemetry", "images_per_s"})
    EXPECT_TRUE(shown["figures"].at(key).is_null()) << key;
}

TEST_F(ReportTest, AnExceptionThatEndedARunIsShown) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  EXPECT_EQ(run("run")["ended_by"], "");
  write_file(dir / "run/metrics.jsonl",
             kTwoEpochs + R"({"kind": "end", "step": 20, "ended_by": "KeyError: 1"})" + "\n");
  EXPECT_EQ(run("run")["ended_by"], "KeyError: 1");
  EXPECT_EQ(run("run")["state"], "ended");
}

TEST_F(ReportTest, NumbersAreNeitherRoundedNorScaled) {
  write_file(dir / "run/metrics.jsonl", step_line(10, 2.0 / 3, 0.1 + 0.2, 1e-7 / 3, 1.0 / 7));
  const json shown = run("run");
  EXPECT_EQ(shown["steps"]["loss"], json({1.0 / 7}));
  EXPECT_EQ(shown["steps"]["time_s"], json({2.0 / 3}));
  EXPECT_EQ(shown["figures"]["loss"], 1.0 / 7);
  write_file(dir / "run/metrics.jsonl", step_line(10, 1, 0, 0, 1.7e308));
  EXPECT_TRUE(run("run")["steps"]["loss"].is_null()) << "no axis can end above it";
}

TEST_F(ReportTest, TensorsAreCountedAsSamples) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  EXPECT_EQ(run("run")["unit"], "samples") << "without a recipe, as of a watched loop";
  write_file(dir / "run/recipe.toml", "[augment]\nsize = 224\n");
  EXPECT_EQ(run("run")["unit"], "images");
  write_file(dir / "run/recipe.toml", "[augment]\nsize = 0\n");
  EXPECT_EQ(run("run")["unit"], "samples");
  write_file(dir / "run/recipe.toml", "[augment]\nsize = 16\n[model]\nname = 'unet3d'\n");
  EXPECT_EQ(run("run")["unit"], "samples") << "crops of volumes";
}

TEST_F(ReportTest, AMetricThatTheLastRecordLacksIsShown) {
  MetricsRecord record;
  record.kind = "eval";
  record.values = {{"r2", 0.5}};
  std::string lines = step_line(10, 1, 0, 0) + to_json_line(record) + "\n";
  record.values = {{"mae", 2}, {"r2", std::nan("")}};
  lines += to_json_line(record) + "\n";
  write_file(dir / "run/metrics.jsonl", lines);
  const json shown = run("run")["evaluations"];
  EXPECT_EQ(shown["r2"], json({0.5, nullptr}));
  EXPECT_EQ(shown["mae"], json({nullptr, 2}));
}

// A trace of `steps` steps of 1,000 us, each with a phase and `calls` short operators.
std::string trace_of(int steps, int calls) {
  json events = json::array();
  for (int track : {1, 2})
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"tid", track},
                      {"args", {{"name", track == 1 ? "phases" : "operators"}}}});
  const auto add = [&](int track, const std::string& name, double begin, double length) {
    events.push_back({{"ph", "X"},
                      {"cat", track == 1 ? "phase" : "operator"},
                      {"tid", track},
                      {"name", name},
                      {"ts", begin},
                      {"dur", length}});
  };
  for (int step = 0; step < steps; ++step) {
    add(1, "step " + std::to_string(step + 5), 1000.0 * step, 1000);
    add(1, "forward", 1000.0 * step, 1000);
    for (int call = 0; call < calls; ++call) add(2, "op", 1000.0 * step + call, 0.5 + call * 1e-4);
  }
  return json{{"traceEvents", events}}.dump();
}

TEST_F(ReportTest, ATimelineHasTheFirstStepsAndTheLongestSpans) {
  write_file(dir / "trace.json", trace_of(5, 100));
  std::vector<std::string> warnings;
  const auto line = read_timeline(Env::posix(), dir.path(), 2, 100, warnings);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->steps, 2);
  EXPECT_EQ(line->end_us, 2000);
  EXPECT_EQ(line->skipped, 104u) << "of 4 phases and 200 operators";
  ASSERT_EQ(line->tracks.size(), 2u);
  EXPECT_EQ(line->tracks[0].spans.size(), 4u) << "phases are longest";
  EXPECT_EQ(line->names[line->tracks[0].spans[0].name], "step 5");
  EXPECT_EQ(line->tracks[1].spans.size(), 96u);
  for (const auto& span : line->tracks[1].spans)
    EXPECT_GE(span.end_us - span.begin_us, 0.5 + 51 * 1e-4) << "the shorter half is skipped";
}

TEST_F(ReportTest, AnInvalidTraceIsAWarning) {
  for (const char* text :
       {"{\"traceEvents\": [", "[]", "{}", "{\"traceEvents\": [3, {\"ph\": 1}]}"}) {
    write_file(dir / "run/metrics.jsonl", kTwoEpochs);
    write_file(dir / "run/trace.json", text);
    const RunReading run = read_run(Env::posix(), dir / "run");
    EXPECT_FALSE(run.timeline) << text;
    ASSERT_EQ(run.warnings.size(), 1u) << text;
    EXPECT_NE(run.warnings[0].find("trace.json"), std::string::npos);
  }
}

TEST_F(ReportTest, AnOlderRunWithoutTelemetryHasNoTelemetrySection) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  const json shown = run("run");
  EXPECT_FALSE(shown["steps"].contains("cores"));
  for (const char* key : {"trace", "training", "mistakes", "classes"})
    EXPECT_TRUE(shown.at(key).is_null()) << key;
  EXPECT_TRUE(shown["figures"]["telemetry"].is_null());
}

TEST_F(ReportTest, TelemetryHasColumnsOfKnownValuesAndFigures) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  record.telemetry.emplace();
  record.telemetry->cores = 1.25;
  record.telemetry->disk_read_per_s = 0;
  record.telemetry->gpu_busy = 0.42;
  record.telemetry->throttle_reasons = "<heat>";
  write_file(dir / "run/metrics.jsonl", to_json_line(record) + "\n");
  const json shown = run("run"), steps = shown["steps"], means = shown["figures"]["telemetry"];
  EXPECT_EQ(steps["cores"], json({1.25}));
  EXPECT_EQ(steps["gpu_busy"], json({0.42}));
  EXPECT_EQ(steps["disk_read_bytes_per_s"], json({0.0}));
  EXPECT_FALSE(steps.contains("gpu_power_w")) << "unknown";
  EXPECT_EQ(means["throttle_reasons"], "<heat>");
  EXPECT_EQ(means["cores"], 1.25);
  EXPECT_TRUE(means.at("gpu_power_w").is_null());
}

TEST_F(ReportTest, AGpusTimeByPhaseIsBesideTheHosts) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  EXPECT_FALSE(record.device_phases);
  write_file(dir / "cpu/metrics.jsonl", to_json_line(record) + "\n");
  record.device_phases.emplace().seconds[size_t(Phase::kForward)] = 0.75;
  const std::string line = to_json_line(record) + "\n";
  record = *from_json_line(step_line(20, 4, 1, 1));
  record.device_phases.emplace().seconds[size_t(Phase::kForward)] = 0.5;
  write_file(dir / "gpu/metrics.jsonl", line + to_json_line(record) + "\n");
  const json both = data({"cpu", "gpu"})["runs"];
  EXPECT_TRUE(both[0]["figures"].at("device_phases").is_null());
  EXPECT_EQ(both[1]["figures"]["device_phases"], json({{"forward", 1.25}}));
  EXPECT_EQ(both[1]["figures"]["phases"], json({{"wait", 2.0}, {"forward", 2.0}}));
}

TEST_F(ReportTest, AGpusStreamsAreSummedOverAllSteps) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  record.streams = {{"copy", 0.5, 1.5}, {"<b>step", 6, 2}};
  const std::string first = to_json_line(record) + "\n";
  record = *from_json_line(step_line(20, 4, 1, 1));
  record.streams = {{"<b>step", 6, 2}};
  write_file(dir / "run/metrics.jsonl", first + to_json_line(record) + "\n");
  const json expected = {{{"stream", "<b>step"}, {"busy_s", 12.0}, {"idle_s", 4.0}},
                         {{"stream", "copy"}, {"busy_s", 0.5}, {"idle_s", 1.5}}};
  EXPECT_EQ(run("run")["figures"]["streams"], expected);
}

TEST_F(ReportTest, RungsHavePhasesIfTheyAreKnown) {
  const auto rung_of = [&](const std::string& phases) {
    write_file(dir / "l.json", "{\"title\":\"l\",\"rungs\":[{\"name\":\"a\",\"steps_per_s\":2," +
                                   phases + "\"memory_peak_bytes\":3221225472}]}");
    const LadderReading ladder = read_ladder_json(Env::posix(), dir / "l.json");
    return data_of_page(make_report({}, {&ladder, 1}))["ladders"][0]["rungs"][0];
  };
  const json rung = rung_of("\"phases\":{\"wait\":0.75,\"forward\":0.25,\"tea\":0.0},");
  EXPECT_EQ(rung["phases"], json({{"wait", 0.75}, {"forward", 0.25}}));
  EXPECT_EQ(rung["memory_peak_bytes"], 3221225472);
  EXPECT_TRUE(rung.at("images_per_s").is_null());
  EXPECT_TRUE(rung_of("").at("phases").is_null());
  EXPECT_TRUE(rung_of("\"phases\":null,").at("phases").is_null());
}

TEST_F(ReportTest, RunsOfTheSameNameAreDistinguishedByPath) {
  for (const std::string name : {"a/run", "b/run", "b/other"}) {
    write_file(dir / (name + "/metrics.jsonl"), kTwoEpochs);
    write_file(dir / (name + "/recipe.toml"), "seed = 1\n[data]\nsource = \"http://h/a?sig=x\"\n");
  }
  const json runs = data({"a/run", "b/run", "b/other"})["runs"];
  EXPECT_EQ(runs[0]["name"], dir / "a/run");
  EXPECT_EQ(runs[1]["name"], dir / "b/run");
  EXPECT_EQ(runs[2]["name"], "other");
  const NamedTexts recipe = {{"data.source", "http://h/a"}, {"seed", "1"}};
  EXPECT_EQ(runs[0]["recipe"], json(recipe));
}

TEST_F(ReportTest, EveryOptionHasItsPositionAndDefault) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  const json shown = data({"run"});
  EXPECT_EQ(shown["options"].size(), recipe_options().size());
  EXPECT_EQ(shown["options"][0], recipe_options()[0].key);
  EXPECT_EQ(shown["defaults"], json(flatten_recipe(to_toml(Recipe{}), "")));
  EXPECT_EQ(shown["phases"].size(), size_t(kPhaseCount));
}

// Classes 0 to `count` - 1 of 40 images each, `i` of which are predicted as the next class.
std::string classes_json(int count, const std::string& counted) {
  json root = {{"step", 7}, {"counted", counted}};
  for (int i = 0; i < count; ++i) {
    root["classes"].push_back(
        {{"name", "c" + std::to_string(i)}, {"count", 40}, {"predicted", 40}, {"correct", 40 - i}});
    root["confusion"].push_back({i, i, 40 - i});
    if (i > 0) root["confusion"].push_back({i, (i + 1) % count, i});
  }
  return root.dump();
}

TEST_F(ReportTest, TheWorstClassesHaveTheirConfusions) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  const auto classes_of = [&](int count, const std::string& counted) {
    write_file(dir / "run/classes.json", classes_json(count, counted));
    return run("run")["classes"];
  };
  const json few = classes_of(3, "images");
  EXPECT_EQ(few["worst"][0], json::parse(R"({"name": "c2", "count": 40, "accuracy": 0.95,
      "iou": 0.9047619047619048, "taken_for": [["c0", 2]]})"));
  EXPECT_EQ(few["matrix"][1], json::parse(R"({"name": "c1", "count": 40, "answers": [0, 39, 1]})"));
  EXPECT_FALSE(few.contains("confusions"));
  const json many = classes_of(30, "images");
  EXPECT_EQ(many["seen"], 30);
  EXPECT_EQ(many["worst"].size(), 24u);
  EXPECT_FALSE(many.contains("matrix"));
  EXPECT_EQ(many["confusions"].size(), 24u);
  EXPECT_EQ(many["confusions"][0],
            json::parse(R"({"name": "c29", "taken_for": "c0", "count": 29, "of": 40})"));
  const json pixels = classes_of(3, "pixels");
  EXPECT_EQ(pixels["counted"], "pixels");
  EXPECT_FALSE(pixels.contains("matrix") || pixels.contains("confusions"));
}

}  // namespace
}  // namespace saturate
