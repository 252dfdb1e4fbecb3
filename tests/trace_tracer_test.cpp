// Traces: their format, the table of operators, and the files of a run.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "run/checkpoint.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/trainer_testing.h"
#include "trace/trace_format.h"
#include "trace/trace_window.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::quiet_options;
using testing::read_text;
using testing::TempDir;

TraceTrack track_of(TrackKind kind, std::vector<TraceSpan> spans) {
  return {"track", kind, std::move(spans)};
}

TEST(TraceFormat, OverlappingSpansAreOnTracksInWhichTheyNest) {
  std::vector<TraceTrack> tracks = {
      track_of(TrackKind::kDevice,
               {{"c", 15, 30}, {"a", 0, 20}, {"b", 5, 10}, {"d", 20, 25}, {"e", 30, 31}})};
  nest_spans(tracks);
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0].name, "track");
  EXPECT_EQ(tracks[1].name, "track (2)");
  std::string first, second;
  for (const auto& span : tracks[0].spans) first += span.name;
  for (const auto& span : tracks[1].spans) second += span.name;
  EXPECT_EQ(first, "abde");
  EXPECT_EQ(second, "c");
}

TEST(TraceFormat, ARowsOwnTimeExcludesOperatorsInside) {
  std::vector<TraceTrack> tracks = {
      track_of(TrackKind::kOperators,
               {{"conv", 0, 100}, {"inner", 10, 40}, {"inner", 40, 50}, {"conv", 200, 250}}),
      track_of(TrackKind::kDevice, {{"kernel", 0, 500}}),
      track_of(TrackKind::kPhases, {{"forward", 0, 1000}})};
  nest_spans(tracks);
  const auto rows = operator_table(tracks);
  ASSERT_EQ(rows.size(), 3u) << "phases are no operators";
  EXPECT_EQ(rows[0].name, "kernel");
  EXPECT_TRUE(rows[0].on_device);
  EXPECT_EQ(rows[1].name, "conv");
  EXPECT_EQ(rows[1].calls, 2);
  EXPECT_EQ(rows[1].total_ns, 150);
  EXPECT_EQ(rows[1].self_ns, 110);
  EXPECT_EQ(rows[2].self_ns, 40);
}

TEST(TraceFormat, TheTableHasTheCopiesBandwidthIfThereAreCopies) {
  Trace trace;
  EXPECT_NE(format_trace(trace, {}, 0).find("copies to the device: n/a"), std::string::npos);
  trace.copies = CopyFigures{.count = 2, .bytes = 24'000'000, .ns = 2'000'000};
  EXPECT_NE(format_trace(trace, {}, 0).find("2 of 24.000 MB in 2.000 ms, 12.00 GB/s"),
            std::string::npos)
      << format_trace(trace, {}, 0);
}

TEST(TraceFormat, AStreamsIdleGapsAreBetweenItsSpans) {
  constexpr int64_t kMs = 1'000'000;
  Trace trace;
  trace.wall_ns = 10 * kMs;
  trace.tracks = {
      {"device, stream 7", TrackKind::kDevice, {{"a", -kMs, kMs}, {"b", 3 * kMs, 5 * kMs}}},
      {"device, stream 7 (2)", TrackKind::kDevice, {{"c", 4 * kMs, 6 * kMs}}},
      {"device, stream 9", TrackKind::kDevice, {{"d", 2 * kMs, 12 * kMs}}},
      {"phases", TrackKind::kPhases, {{"wait", 0, 10 * kMs}}}};
  const std::string text = format_trace(trace, {}, 0);
  const auto row = [&](const std::string& name) {
    const auto begin = text.find("\n" + name + " ");
    std::istringstream words(text.substr(begin + 1 + name.size(), 120));
    std::string busy, share, percent, gaps, longest;
    words >> busy >> share >> percent >> gaps >> longest;
    return busy + " " + share + " " + gaps + " " + longest;
  };
  EXPECT_EQ(row("device, stream 7"), "4.000 40.0 2 4.000") << text;
  EXPECT_EQ(row("device, stream 9"), "8.000 80.0 1 2.000") << text;
  EXPECT_EQ(row("all streams"), "9.000 90.0 1 1.000") << text;
}

TEST(TraceFormat, NamesAreQuotedAndTimesAreExact) {
  Trace trace;
  trace.tracks = {track_of(TrackKind::kOperators, {{"a\"\\\n\xff", -1, 1'234'567'890'123}})};
  const json found = json::parse(trace_json(trace));
  const json& span = found["traceEvents"].back();
  EXPECT_EQ(span["name"], "a\"\\\n\ufffd");
  EXPECT_NE(trace_json(trace).find("\"ts\":-0.001,\"dur\":1234567890.124}"), std::string::npos);
}

Recipe traced_recipe(const std::string& window) {
  Recipe recipe = parse_recipe(
      "[data]\nsource = \"synth:size=32,count=100\"\nthreads = 2\n[model]\nname = \"simple_cnn\"\n"
      "[train]\nbatch = 10\nepochs = 1\nthreads = 1\ndevice = \"cpu\"\n[watch]\nsamples = 0\n"
      "tensorboard = false\n",
      "test");
  recipe.watch.trace = window;
  return recipe;
}

struct Track {
  std::string name;
  std::vector<json> spans;
};

std::map<int, Track> tracks_of(const json& trace) {
  std::map<int, Track> tracks;
  for (const auto& event : trace["traceEvents"]) {
    Track& track = tracks[event["tid"]];
    if (event["ph"] == "X") track.spans.push_back(event);
    if (event["name"] == "thread_name") track.name = event["args"]["name"];
  }
  return tracks;
}

const Track* track_named(const std::map<int, Track>& tracks, const std::string& name) {
  for (const auto& [id, track] : tracks)
    if (track.name == name) return &track;
  return nullptr;
}

int64_t ns_of(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

void expect_nested(const Track& track) {
  std::vector<int64_t> open;
  int64_t begin_before = INT64_MIN;
  for (const auto& span : track.spans) {
    const int64_t begin = ns_of(span["ts"]), end = begin + ns_of(span["dur"]);
    ASSERT_GE(begin, begin_before) << track.name;
    begin_before = begin;
    while (!open.empty() && open.back() <= begin) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(end, open.back()) << span << " of " << track.name;
    }
    open.push_back(end);
  }
}

TEST(Trace, PhasesSumToTheWindowsWallTimeAndSpansNestInEveryTrack) {
  const TempDir dir;
  ::testing::internal::CaptureStderr();
  Trainer(Env::posix(), traced_recipe("steps:3-6"), quiet_options(dir.path())).run();
  ::testing::internal::GetCapturedStderr();
  const json trace = json::parse(read_text(dir / "trace.json"));
  const auto tracks = tracks_of(trace);
  for (const auto& [id, track] : tracks) expect_nested(track);

  const Track* phases = track_named(tracks, "phases");
  ASSERT_NE(phases, nullptr);
  double sum_us = 0;
  std::vector<std::string> steps;
  for (const auto& span : phases->spans) {
    EXPECT_EQ(span["cat"], "phase");
    const std::string name = span["name"];
    if (name.starts_with("step "))
      steps.push_back(name);
    else
      sum_us += span["dur"].get<double>();
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"step 3", "step 4", "step 5", "step 6"}));
  const double wall_us = trace["otherData"]["wall_us"];
  EXPECT_NEAR(sum_us, wall_us, 0.01 * wall_us);
  EXPECT_EQ(trace["otherData"]["first_step"], 3);
  EXPECT_EQ(trace["otherData"]["last_step"], 6);
}

TEST(Trace, OperatorsAreInsideThePhasesThatCallThem) {
  const TempDir dir;
  Trainer(Env::posix(), traced_recipe("steps:3-4"), quiet_options(dir.path())).run();
  const auto tracks = tracks_of(json::parse(read_text(dir / "trace.json")));
  const Track* phases = track_named(tracks, "phases");
  const Track* operators = track_named(tracks, "operators");
  ASSERT_TRUE(phases && operators);
  int forward = 0, backward = 0;
  for (const auto& call : operators->spans) {
    const double middle = call["ts"].get<double>() + call["dur"].get<double>() / 2;
    std::string phase;
    for (const auto& span : phases->spans)
      if (!span["name"].get<std::string>().starts_with("step ") &&
          span["ts"].get<double>() <= middle &&
          middle < span["ts"].get<double>() + span["dur"].get<double>())
        phase = span["name"];
    const std::string name = call["name"];
    if (name == "aten::conv2d") {
      EXPECT_EQ(phase, "forward");
      ++forward;
    }
    if (name == "aten::convolution_backward") {
      EXPECT_EQ(phase, "backward");
      ++backward;
    }
  }
  EXPECT_GT(forward, 0);
  EXPECT_EQ(forward, backward);
  const std::string table = read_text(dir / "trace.txt");
  EXPECT_NE(table.find("aten::convolution_backward"), std::string::npos) << table;
}

TEST(Trace, LoaderThreadsAndTheCheckpointWriterHaveSeparateTracks) {
  const TempDir dir;
  Recipe recipe = traced_recipe("steps:1-8");
  recipe.checkpoint.every_steps = 2;
  // Saves are made within the window, but on a separate thread.
  recipe.checkpoint.background = false;
  TrainerOptions options = quiet_options(dir.path());
  options.save = true;
  Trainer(Env::posix(), recipe, options).run();
  const auto tracks = tracks_of(json::parse(read_text(dir / "trace.json")));
  std::map<std::string, std::map<std::string, int>> names;
  for (const auto& [id, track] : tracks)
    for (const auto& span : track.spans) ++names[track.name][span["name"]];
  bool loader = false;
  for (const auto& [track, spans] : names)
    loader = loader || (track.starts_with("loader") && spans.contains("sample") &&
                        spans.contains("read") && spans.contains("decode and cut"));
  EXPECT_TRUE(loader);
  int writers = 0;
  for (const auto& [track, spans] : names)
    if (track.starts_with("checkpoint")) writers += int(spans.contains("write checkpoint"));
  EXPECT_GT(writers, 0);
}

// A run's output on stderr.
std::string said_by(Env& env, const Recipe& recipe, const TrainerOptions& options) {
  ::testing::internal::CaptureStderr();
  Trainer(env, recipe, options).run();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Trace, AFullDiskLosesOnlyTheTrace) {
  for (const std::string file : {"trace.json", "trace.txt"}) {
    const TempDir dir;
    FaultEnv env(Env::posix());
    Fault fault;
    fault.match = {FileOp::kWrite, file};
    fault.written = 10;
    env.inject(fault);
    TrainerOptions options = quiet_options(dir.path());
    options.save = true;
    const std::string said = said_by(env, traced_recipe("steps:2-3"), options);
    const bool has_json = file == "trace.txt";
    EXPECT_NE(said.find("saturate: warning: the trace of steps 2 to 3" +
                        (has_json ? ", but for " + (dir / "trace.json") + "," : "") +
                        " is lost, the run continues"),
              std::string::npos)
        << said;
    EXPECT_EQ(std::filesystem::exists(dir / "trace.json"), has_json);
    EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
    EXPECT_FALSE(std::filesystem::exists(dir / file)) << "no partial file";
    EXPECT_EQ(find_checkpoint(Env::posix(), dir.path(), [](const std::string&) {}).position.step,
              10);
  }
}

TEST(Trace, ARunThatNeverReachesTheWindowSaysSo) {
  const TempDir dir;
  const std::string said =
      said_by(Env::posix(), traced_recipe("steps:11-20"), quiet_options(dir.path()));
  EXPECT_NE(said.find("watch.trace: nothing was traced, no step of this process lay in steps 11 to "
                      "20 (the last one was 10)"),
            std::string::npos)
      << said;
  EXPECT_FALSE(std::filesystem::exists(dir / "trace.json"));
}

TEST(Trace, TheTableIsPrintedLineByLine) {
  const TempDir dir;
  TrainerOptions options = quiet_options(dir.path());
  options.progress = Progress::Style::kLines;
  const std::string said = said_by(Env::posix(), traced_recipe("steps:3-4"), options);
  EXPECT_NE(said.find("open it in ui.perfetto.dev\n"), std::string::npos) << said;
  EXPECT_NE(said.find("\n  aten::convolution_backward "), std::string::npos) << said;
  EXPECT_EQ(said.find("\\x0a"), std::string::npos) << said;
}

TEST(Trace, ARunThatEndsWithinTheWindowWritesThePartialTrace) {
  const TempDir dir;
  EXPECT_EQ(said_by(Env::posix(), traced_recipe("steps:9-20"), quiet_options(dir.path())), "");
  const json trace = json::parse(read_text(dir / "trace.json"));
  EXPECT_EQ(trace["otherData"]["last_step"], 10);
}

TEST(Trace, AFailureWithinTheWindowReleasesTheProfilerForTheNextRun) {
  const TempDir dir;
  Recipe recipe = traced_recipe("steps:2-9");
  recipe.optimizer.lr = 1e30;
  recipe.watch.every = 1;
  EXPECT_EQ(error_of([&] {
              Trainer(Env::posix(), recipe, quiet_options(dir / "bad")).run();
            }).exit_code(),
            4);
  Trainer(Env::posix(), traced_recipe("steps:2-3"), quiet_options(dir / "good")).run();
  EXPECT_TRUE(std::filesystem::exists(dir / "good/trace.json"));
}

TEST(TraceWindow, IsCheckedWhenTheRecipeIsRead) {
  const auto refused = [](const std::string& text) {
    return error_of([&] {
      parse_recipe("[data]\nsource = \"synth:\"\n[watch]\ntrace = \"" + text + "\"\n", "r.toml");
    });
  };
  for (const char* text : {"steps", "steps:", "steps:5-4", "steps:0-4", "steps:a-b", "step:1-2",
                           "steps:1-2-3", "steps:-3", "steps:1 - 2"}) {
    const Error error = refused(text);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("watch.trace"), std::string::npos) << error.what();
  }
  EXPECT_NE(std::string(refused("steps:1-1001").what()).find("1000 is the most"),
            std::string::npos);
  const TraceWindow window = parse_trace("steps:100-110", "test");
  EXPECT_EQ(window.kind, TraceKind::kSteps);
  EXPECT_EQ(window.first, 100);
  EXPECT_EQ(window.last, 110);
  EXPECT_EQ(parse_trace("nsight:7", "test").last, 7);
}

TEST(TraceWindow, AProfilersWindowNeedsAGpu) {
  const TempDir dir;
  const Error error = error_of(
      [&] { Trainer(Env::posix(), traced_recipe("nsight:1-2"), quiet_options(dir.path())); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.where(), "watch.trace");
}

TEST(LedgerSwitch, WhenOffOnlyTheRemainderIsCharged) {
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  Ledger ledger(env);
  const auto spend = [&] {
    Ledger::Scope scope(ledger, Phase::kForward);
    env.sleep_ns(1'000'000'000);
  };
  spend();
  ledger.set_enabled(false);
  spend();
  ledger.set_enabled(true);
  spend();
  EXPECT_EQ(ledger.times()[Phase::kForward], 2);
  EXPECT_EQ(ledger.times()[Phase::kOther], 1);
}

}  // namespace
}  // namespace saturate
