// The figures made of a run, and the page's safety.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "report/page_text.h"
#include "report/report.h"
#include "report/run_figures.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::line_of;
using testing::RunFolder;
using testing::step_line;
using testing::TempDir;
using testing::write_file;

using RunFiguresTest = RunFolder;

// Steps from 1 s to 3 s and, after an evaluation up to 5 s, from 6 s to 8 s; the end at 9 s.
const std::string kTwoEpochs = step_line(10, 3, 0.5, 1.5) + line_of("eval", 10, 5, 0.7) +
                               step_line(20, 8, 1, 1) + line_of("eval", 20, 8.5, 0.6) +
                               line_of("end", 20, 9, 0.6);

TEST_F(RunFiguresTest, TimeSpansHaveNoHolesAndKnowEvaluation) {
  const auto spans = time_spans(read(kTwoEpochs));
  double now = 0, evaluation = 0, other = 0;
  for (const auto& span : spans) {
    EXPECT_EQ(span.begin_s, now);
    EXPECT_NEAR(span.phases.total(), span.end_s - span.begin_s, 1e-12);
    now = span.end_s;
    evaluation += span.phases[Phase::kEvaluation];
    other += span.phases[Phase::kOther];
  }
  EXPECT_EQ(now, 9);
  EXPECT_DOUBLE_EQ(evaluation, 2.5);
  EXPECT_DOUBLE_EQ(other, 1 + 1 + 0.5);  // set-up, before the second epoch, at the end
}

TEST_F(RunFiguresTest, EvenSpansHoldTheSameTime) {
  const auto spans = time_spans(read(kTwoEpochs));
  for (const int count : {1, 7, 90}) {
    const auto even = even_spans(spans, count);
    ASSERT_EQ(even.size(), size_t(count));
    PhaseTimes sum;
    for (const auto& span : even) {
      EXPECT_NEAR(span.phases.total(), 9.0 / count, 1e-9);
      for (size_t i = 0; i < sum.seconds.size(); ++i) sum.seconds[i] += span.phases.seconds[i];
    }
    EXPECT_NEAR(sum[Phase::kWait], 1.5, 1e-9);
    EXPECT_NEAR(sum[Phase::kForward], 2.5, 1e-9);
    EXPECT_NEAR(sum[Phase::kEvaluation], 2.5, 1e-9);
  }
}

TEST_F(RunFiguresTest, ClosingFiguresAreThoseOfTheLastRecords) {
  const RunFigures figures = figures_of(read(kTwoEpochs));
  EXPECT_TRUE(figures.held_out);
  EXPECT_EQ(figures.accuracy, 0.6);
  EXPECT_EQ(figures.best_accuracy, 0.7);
  EXPECT_EQ(figures.time_s, 9);
  EXPECT_EQ(figures.steps, 20);
  EXPECT_EQ(figures.images_per_s, 50);
  EXPECT_NEAR(figures.phases->total(), 9, 1e-9);
}

TEST_F(RunFiguresTest, AResumedRunsPhasesAreNotThoseOfItsLastProcessAlone) {
  MetricsRecord end;
  end.kind = "end";
  end.step = 20;
  end.time_s = 9;
  end.phases.emplace().seconds[size_t(Phase::kForward)] = 4;
  const std::string steps = step_line(10, 3, 0.5, 1.5) + step_line(20, 8, 1, 1);
  EXPECT_NEAR((*figures_of(read(steps + to_json_line(end) + "\n")).phases)[Phase::kForward], 2.5,
              1e-9);
  end.phases->seconds[size_t(Phase::kForward)] = 9;
  EXPECT_NEAR((*figures_of(read(steps + to_json_line(end) + "\n")).phases)[Phase::kForward], 9,
              1e-9);
}

TEST(Thinned, PointsAreMeansWeightedBySteps) {
  std::vector<MetricsRecord> records(4);
  const int steps[] = {10, 20, 30, 35};
  for (size_t i = 0; i < 4; ++i) {
    records[i].step = steps[i];
    records[i].loss = double(i);
    records[i].memory_peak_bytes = int64_t(100 - i);
  }
  records[0].loss.reset();
  const auto fewer = thinned(records, 2);
  ASSERT_EQ(fewer.size(), 2u);
  EXPECT_EQ(fewer[0].step, 20);
  EXPECT_EQ(fewer[0].loss, 1);  // alone, the other being unknown
  EXPECT_EQ(fewer[0].memory_peak_bytes, 100);
  EXPECT_EQ(fewer[1].step, 35);
  EXPECT_DOUBLE_EQ(*fewer[1].loss, (2 * 10 + 3 * 5) / 15.0);
  EXPECT_EQ(thinned(records, 4).size(), 4u);
}

class ReportTest : public RunFolder {
 protected:
  std::string report(const std::vector<std::string>& names) {
    std::vector<RunReading> runs;
    for (const auto& name : names) runs.push_back(read_run(Env::posix(), dir / name));
    return make_report(runs);
  }
};

TEST_F(ReportTest, NothingOfAHostileRunReachesThePageAsMarkup) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"";
  const std::string folder = dir / "<img src=x onerror=alert(3)>";
  write_file(folder + "/metrics.jsonl", kTwoEpochs);
  write_file(folder + "/recipe.toml", "[data]\nsource = '''" + evil + "'''\n\"<i>\" = 1\n");
  write_file(folder + "/host.json", nlohmann::json{{"<u>", evil}}.dump());
  const RunReading run = read_run(Env::posix(), folder);
  const std::string page = make_report({&run, 1});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<i>"), std::string::npos);
  EXPECT_EQ(page.find("<u>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)"), std::string::npos);
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
}

TEST_F(ReportTest, ARunWithoutStepsSaysSoAndHasNoEmptySections) {
  write_file(dir / "run/metrics.jsonl", "");
  const std::string page = report({"run"});
  EXPECT_NE(page.find("recorded no step yet"), std::string::npos);
  EXPECT_EQ(page.find("<section"), std::string::npos);
  EXPECT_EQ(page.find("<canvas"), std::string::npos);
}

// A trace of `steps` steps of 1,000 us, each with a phase and `calls` short operators.
std::string trace_of(int steps, int calls) {
  using nlohmann::json;
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
  EXPECT_EQ(line->left_out, 104u) << "of 4 phases and 200 operators";
  ASSERT_EQ(line->tracks.size(), 2u);
  EXPECT_EQ(line->tracks[0].spans.size(), 4u) << "phases are longest";
  EXPECT_EQ(line->names[line->tracks[0].spans[0].name], "step 5");
  EXPECT_EQ(line->tracks[1].spans.size(), 96u);
  for (const auto& span : line->tracks[1].spans)
    EXPECT_GE(span.end_us - span.begin_us, 0.5 + 51 * 1e-4) << "the shorter half is out";
}

TEST_F(ReportTest, ATraceThatIsNoneIsAWarning) {
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

TEST_F(ReportTest, AnOlderRunsMissingTelemetryLeavesNoEmptyCharts) {
  write_file(dir / "run/metrics.jsonl", kTwoEpochs);
  const std::string page = report({"run"});
  EXPECT_EQ(page.find("id=\"machine\""), std::string::npos);
  EXPECT_EQ(page.find("Cores in use"), std::string::npos);
  EXPECT_EQ(page.find("id=\"samples\""), std::string::npos);
  EXPECT_EQ(page.find("id=\"timeline\""), std::string::npos);
}

TEST_F(ReportTest, TelemetryHasChartsOfWhatIsKnownAndFigures) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  record.telemetry.emplace();
  record.telemetry->cores = 1.25;
  record.telemetry->disk_read_per_s = 0;
  record.telemetry->gpu_busy = 0.42;
  record.telemetry->throttle_reasons = "<heat>";
  write_file(dir / "run/metrics.jsonl", to_json_line(record) + "\n");
  const std::string page = report({"run"});
  EXPECT_NE(page.find("data-chart=\"cores\""), std::string::npos);
  EXPECT_NE(page.find("data-chart=\"gpu_busy\""), std::string::npos);
  EXPECT_EQ(page.find("data-chart=\"disk_read_bytes_per_s\""), std::string::npos) << "always 0";
  EXPECT_EQ(page.find("data-chart=\"gpu_power_w\""), std::string::npos) << "unknown";
  EXPECT_NE(page.find("throttled by &lt;heat&gt;"), std::string::npos);
  EXPECT_NE(page.find("1.25"), std::string::npos);
}

TEST_F(ReportTest, AGpusTimeByPhaseStandsBesideTheHosts) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  EXPECT_FALSE(record.device_phases);
  write_file(dir / "cpu/metrics.jsonl", to_json_line(record) + "\n");
  record.device_phases.emplace().seconds[size_t(Phase::kForward)] = 0.75;
  const std::string line = to_json_line(record) + "\n";
  record = *from_json_line(step_line(20, 4, 1, 1));
  record.device_phases.emplace().seconds[size_t(Phase::kForward)] = 0.5;
  write_file(dir / "gpu/metrics.jsonl", line + to_json_line(record) + "\n");
  const std::string page = report({"gpu"});
  EXPECT_NE(page.find("On the GPU</th>"), std::string::npos);
  EXPECT_NE(
      page.find("<td class=\"number\">" + time_text(1.25) + "</td><td class=\"number\">62.50</td>"),
      std::string::npos);
  EXPECT_EQ(report({"cpu"}).find("On the GPU"), std::string::npos);
  const std::string both = report({"cpu", "gpu"});
  EXPECT_NE(both.find(", on the GPU " + time_text(1.25) + "</small>"), std::string::npos);
}

TEST_F(ReportTest, AGpusStreamsHaveATableOverAllSteps) {
  MetricsRecord record = *from_json_line(step_line(10, 2, 1, 1));
  record.streams = {{"copy", 0.5, 1.5}, {"<b>step", 6, 2}};
  const std::string first = to_json_line(record) + "\n";
  record = *from_json_line(step_line(20, 4, 1, 1));
  record.streams = {{"<b>step", 6, 2}};
  write_file(dir / "run/metrics.jsonl", first + to_json_line(record) + "\n");
  const std::string page = report({"run"});
  EXPECT_NE(page.find("GPU streams: busy, idle"), std::string::npos);
  const auto row = [](const char* name, const char* share, const char* busy, const char* idle) {
    std::string html = std::string("<th scope=\"row\" class=\"data\">") + name + "</th>";
    for (const std::string cell : {share, busy, idle})
      html += "<td class=\"number\">" + cell + "</td>";
    return html;
  };
  EXPECT_NE(page.find(row("copy", "25.0\u202f%", "0.5\u202fs", "1.5\u202fs")), std::string::npos);
  EXPECT_NE(page.find(row("&lt;b&gt;step", "75.0\u202f%", "12\u202fs", "4.0\u202fs")),
            std::string::npos);
}

TEST_F(ReportTest, RungsHaveAChartOfTheirPhasesWhereTheyAreKnown) {
  const auto page_of = [&](const std::string& phases) {
    write_file(dir / "l.json", "{\"title\":\"l\",\"rungs\":[{\"name\":\"a\",\"steps_per_s\":2," +
                                   phases + "\"memory_peak_bytes\":3221225472}]}");
    const LadderReading ladder = read_ladder_json(Env::posix(), dir / "l.json");
    return make_report({}, {&ladder, 1});
  };
  const std::string page = page_of("\"phases\":{\"wait\":0.75,\"forward\":0.25,\"tea\":0.0},");
  EXPECT_NE(page.find("data-chart=\"rungs:0\""), std::string::npos);
  EXPECT_NE(page.find("\"phases\":{\"wait\":0.75,\"forward\":0.25}"), std::string::npos);
  EXPECT_NE(page.find("3.00\u202fGiB"), std::string::npos);
  EXPECT_EQ(page_of("").find("data-chart=\"rungs:0\""), std::string::npos);
  EXPECT_EQ(page_of("\"phases\":null,").find("data-chart=\"rungs:0\""), std::string::npos);
}

TEST_F(ReportTest, KeysThatDifferBetweenRunsAreMarked) {
  for (const std::string name : {"a/run", "b/run"}) {
    write_file(dir / (name + "/metrics.jsonl"), kTwoEpochs);
    write_file(dir / (name + "/recipe.toml"),
               "seed = 1\n[train]\nbatch = " + std::string(name[0] == 'a' ? "8" : "16") +
                   "\nepochs = 2.0\n");
  }
  const std::string page = report({"a/run", "b/run"});
  EXPECT_NE(page.find("1 of 3 keys differ."), std::string::npos);
  const std::regex marked(
      "<tr class=\"differs\"><th scope=\"row\" class=\"data\">train.batch .*<td "
      "class=\"data\" data-of=\"[^\"]*\">8</td>"
      "<td class=\"data\" data-of=\"[^\"]*\">16</td>");
  EXPECT_TRUE(std::regex_search(page, marked));
  EXPECT_EQ(page.find("differs\"><th scope=\"row\" class=\"data\">seed"), std::string::npos);
  // Both folders are called run, so whole paths tell them apart.
  EXPECT_NE(page.find("<strong class=\"data\">" + (dir / "a/run")), std::string::npos);
}

TEST_F(ReportTest, DifferencesAreToTheFirstRun) {
  write_file(dir / "a/metrics.jsonl", line_of("eval", 10, 100, 0.5) + line_of("end", 10, 100, 0.5));
  write_file(dir / "b/metrics.jsonl", line_of("eval", 10, 80, 0.52) + line_of("end", 10, 80, 0.52));
  const std::string page = report({"a", "b"});
  EXPECT_NE(page.find("<small>+2.00 points</small>"), std::string::npos);
  EXPECT_NE(page.find("<small>-20.0\u202f%</small>"), std::string::npos);
}

}  // namespace
}  // namespace saturate
