// The order of a ladder's measurements, its results, and its reports.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "advise/ladder.h"
#include "advise/rung_wire.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;

// Returns the test's rates, and records the calls.
class ScriptedMeasurer : public RungMeasurer {
 public:
  // images/s by rung and round; a rung without rates fails.
  std::vector<std::vector<double>> rates;
  ErrorKind failure = ErrorKind::kRun;
  int fail_at_round = 0;           // for a rung without rates
  int stop_after = 1000;           // calls
  std::vector<std::string> calls;  // "start 0", "measure 1"

  bool start(size_t rung, const Recipe&) override {
    if (!note("start", rung)) return false;
    if (rates[rung].empty() && fail_at_round == 0) fail_now();
    return true;
  }
  std::optional<RungTiming> measure(size_t rung, double seconds) override {
    if (!note("measure", rung)) return std::nullopt;
    if (rates[rung].empty() && ++rounds_[rung] == fail_at_round) fail_now();
    RungTiming timing;
    timing.steps.steps = 10;
    timing.steps.wall_s = seconds;
    timing.steps.cpu_s = 2 * seconds;
    timing.steps.samples =
        rates[rung].empty() ? 1 : int64_t(rates[rung][rounds_[rung]++] * seconds);
    timing.steps.phases.seconds[size_t(Phase::kWait)] = 0.75 * seconds;
    timing.steps.phases.seconds[size_t(Phase::kForward)] = 0.25 * seconds;
    timing.memory_peak_bytes = int64_t(rung + 1) << 30;
    timing.tensor_peak_bytes = 5;
    return timing;
  }

 private:
  bool note(const char* what, size_t rung) {
    calls.push_back(what + (" " + std::to_string(rung)));
    return int(calls.size()) <= stop_after;
  }
  [[noreturn]] void fail_now() { fail(failure, "out of memory", "train.batch", "Lower it"); }
  std::map<size_t, int> rounds_;
};

Ladder make_ladder(const std::vector<std::string>& names) {
  Ladder ladder;
  ladder.title = "T";
  ladder.recipe = "r.toml";
  for (size_t i = 0; i < names.size(); ++i) {
    Rung rung;
    rung.name = names[i];
    rung.previous = i == 0 ? 0 : i - 1;
    rung.where = "rung \"" + names[i] + "\"";
    ladder.rungs.push_back(rung);
  }
  return ladder;
}

LadderResult run(const Ladder& ladder, ScriptedMeasurer& measurer, int rounds) {
  LadderOptions options;
  options.rounds = rounds;
  options.seconds = 100;
  std::vector<std::optional<Recipe>> recipes;
  for (const Rung& rung : ladder.rungs)
    recipes.push_back(unmet_needs(rung, {}).empty() ? std::optional(Recipe()) : std::nullopt);
  return run_ladder(ladder, recipes, {}, options, measurer);
}

TEST(LadderRun, RungsAlternateInBothDirections) {
  ScriptedMeasurer measurer;
  measurer.rates = {{1, 1, 1}, {2, 2, 2}, {3, 3, 3}};
  run(make_ladder({"a", "b", "c"}), measurer, 3);
  const std::vector<std::string> expected = {"start 0",   "start 1",   "start 2",   "measure 0",
                                             "measure 1", "measure 2", "measure 2", "measure 1",
                                             "measure 0", "measure 0", "measure 1", "measure 2"};
  EXPECT_EQ(measurer.calls, expected);
}

TEST(LadderRun, GainsCompareMeasurementsOfTheSameRound) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100, 50}, {150, 75}, {300, 150}};
  Ladder ladder = make_ladder({"a", "b", "c"});
  ladder.rungs[0].seed_figure = "10 steps/s";
  ladder.rungs[1].seed_figure = "17 steps/s";
  ladder.rungs[2].seed_figure = "3 s";
  const LadderResult result = run(ladder, measurer, 2);
  EXPECT_FALSE(result.rungs[0].over_previous);
  EXPECT_NEAR(result.rungs[1].over_previous->ratio, 1.5, 1e-9);
  EXPECT_NEAR(result.rungs[2].over_previous->ratio, 2, 1e-9);
  EXPECT_NEAR(result.rungs[2].over_first->ratio, 3, 1e-9);
  EXPECT_NEAR(result.rungs[2].over_first->low, 3, 1e-6);
  EXPECT_NEAR(images_per_s(result.rungs[0]), 75, 1e-9);
  EXPECT_NEAR(steps_per_s(result.rungs[0]), 0.1, 1e-9);
  EXPECT_NEAR(result.rungs[1].seed_gain.value(), 1.7, 1e-9);
  EXPECT_FALSE(result.rungs[2].seed_gain) << "different units";
}

TEST(LadderRun, RungsThatCannotRunHereAreSkippedAndNotStarted) {
  ScriptedMeasurer measurer;
  measurer.rates = {{1}, {}, {3}};
  Ladder ladder = make_ladder({"a", "b", "c"});
  ladder.rungs[1].needs = {"cuda>=2"};
  const LadderResult result = run(ladder, measurer, 1);
  EXPECT_EQ(result.rungs[1].skipped, "needs cuda>=2 (here 0)");
  EXPECT_EQ(measurer.calls.size(), 4u);
  EXPECT_FALSE(result.rungs[2].over_previous);
  EXPECT_NEAR(result.rungs[2].over_first->ratio, 3, 1e-9);
  EXPECT_NE(format_ladder(ladder, result).find("b: needs cuda>=2 (here 0)"), std::string::npos);
}

TEST(LadderRun, AFailingRungIsSkippedAndTheOthersContinue) {
  for (const int round : {0, 2}) {
    ScriptedMeasurer measurer;
    measurer.rates = {{1, 1, 1}, {}, {3, 3, 3}};
    measurer.fail_at_round = round;
    const LadderResult result = run(make_ladder({"a", "b", "c"}), measurer, 3);
    EXPECT_EQ(result.rungs[1].skipped, "failed: out of memory");
    EXPECT_TRUE(result.rungs[1].rounds.empty());
    EXPECT_EQ(result.rungs[2].rounds.size(), 3u);
    EXPECT_EQ(measurer.calls.back(), "measure 2");
  }
}

TEST(LadderRun, AWrongSettingEndsTheLadderAndNamesTheRung) {
  ScriptedMeasurer measurer;
  measurer.rates = {{1}, {}};
  measurer.failure = ErrorKind::kData;
  const Error error = error_of([&] { run(make_ladder({"a", "b"}), measurer, 1); });
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_EQ(error.where(), "rung \"b\", train.batch");
}

TEST(LadderRun, AnInterruptKeepsFinishedMeasurements) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100, 100}, {150, 150}, {1, 1}};
  measurer.stop_after = 3 + 2;  // in the first round's third measurement
  const Ladder ladder = make_ladder({"a", "b", "c"});
  const LadderResult result = run(ladder, measurer, 2);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(measurer.calls.size(), 6u) << "nothing more is measured";
  EXPECT_NEAR(result.rungs[1].over_first->ratio, 1.5, 1e-9);
  EXPECT_EQ(result.rungs[2].skipped, "interrupted before it was measured");
  EXPECT_NE(format_ladder(ladder, result).find("interrupted"), std::string::npos);
}

TEST(LadderReport, JsonHasTheDocumentedKeys) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100, 100}, {150, 155}, {}};
  Ladder ladder = make_ladder({"a", "b", "c"});
  ladder.rungs[0].seed_figure = "20 s";
  ladder.rungs[1].seed_figure = "10 s";
  ladder.rungs[1].set = {"train.batch=8"};
  ladder.rungs[2].needs = {"nodes>=2"};
  LadderOptions options;
  options.rounds = 2;
  const auto json = nlohmann::json::parse(ladder_json(ladder, run(ladder, measurer, 2), options));
  EXPECT_EQ(json["title"], "T");
  EXPECT_TRUE(json["host"].is_object());
  EXPECT_TRUE(json["commit"].is_string());
  EXPECT_EQ(json["rounds"], 2);
  const auto& rungs = json["rungs"];
  ASSERT_EQ(rungs.size(), 3u);
  for (const auto& rung : rungs)
    for (const char* key : {"name", "steps_per_s", "gain_previous", "gain_first", "low", "high",
                            "phases", "memory_peak_bytes", "skipped", "seed_figure"})
      EXPECT_TRUE(rung.contains(key)) << key;
  EXPECT_EQ(rungs[0]["gain_previous"], nullptr);
  EXPECT_EQ(rungs[0]["gain_first"], 1);
  EXPECT_EQ(rungs[0]["skipped"], nullptr);
  EXPECT_EQ(rungs[1]["set"][0], "train.batch=8");
  EXPECT_NEAR(rungs[1]["gain_first"].get<double>(), std::sqrt(1.5 * 1.55), 1e-9);
  EXPECT_LT(rungs[1]["low"].get<double>(), rungs[1]["gain_first"].get<double>());
  EXPECT_GT(rungs[1]["high"].get<double>(), rungs[1]["gain_first"].get<double>());
  EXPECT_NEAR(rungs[1]["phases"]["wait"].get<double>(), 0.75, 1e-9);
  EXPECT_FALSE(rungs[1]["phases"].contains("reduce"));
  EXPECT_EQ(rungs[1]["memory_peak_bytes"], int64_t{2} << 30);
  EXPECT_NEAR(rungs[1]["cores_used"].get<double>(), 2, 1e-9);
  EXPECT_EQ(rungs[1]["seed_figure"], "10 s");
  EXPECT_NEAR(rungs[1]["seed_gain_first"].get<double>(), 2, 1e-9);
  EXPECT_EQ(rungs[2]["steps_per_s"], nullptr);
  EXPECT_EQ(rungs[2]["skipped"], "needs nodes>=2 (here 1)");
}

TEST(LadderReport, OneRoundHasNoInterval) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100}, {150}};
  const Ladder ladder = make_ladder({"a", "b"});
  const LadderResult result = run(ladder, measurer, 1);
  const auto json = nlohmann::json::parse(ladder_json(ladder, result, {}));
  for (const char* key : {"low", "high", "low_previous", "high_previous"})
    EXPECT_EQ(json["rungs"][1][key], nullptr) << key;
  EXPECT_NE(format_ladder(ladder, result).find("+50.0 %"), std::string::npos);
  EXPECT_EQ(format_ladder(ladder, result).find("inf"), std::string::npos);
}

TEST(LadderReport, TensorsAreCountedAsSamples) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100}, {150}};
  const Ladder ladder = make_ladder({"a", "b"});
  LadderResult result = run(ladder, measurer, 1);
  EXPECT_NE(format_ladder(ladder, result).find("images/s"), std::string::npos);
  result.rungs[0].rounds[0].unit = "samples";
  EXPECT_NE(format_ladder(ladder, result).find("samples/s"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(ladder_json(ladder, result, {}))["unit"], "samples");
}

TEST(LadderReport, MarkdownRowsHaveAsManyCellsAsTheHeader) {
  ScriptedMeasurer measurer;
  measurer.rates = {{100, 101}, {150, 149}, {}};
  Ladder ladder = make_ladder({"a|b", "b", "c"});
  ladder.rungs[1].set = {"x=1", "y=2"};
  ladder.rungs[2].needs = {"cuda"};
  const std::string text = ladder_markdown(ladder, run(ladder, measurer, 2));
  std::istringstream lines(text.substr(text.find("\n\n") + 2));
  std::vector<long> bars;
  for (std::string line; std::getline(lines, line);)
    bars.push_back(std::count(line.begin(), line.end(), '|'));
  EXPECT_EQ(bars, (std::vector<long>{10, 10, 11, 10, 10})) << text;
  EXPECT_NE(text.find("a\\|b"), std::string::npos);
  EXPECT_NE(text.find("`x=1`, `y=2`"), std::string::npos);
  EXPECT_NE(text.find("skipped: needs cuda (here 0)"), std::string::npos);
}

TEST(SeedFigure, AFasterRunHasLessTimeOrAHigherRate) {
  EXPECT_NEAR(seed_gain("20.41 steps/s", "35.22 steps/s").value(), 1.7256, 1e-4);
  EXPECT_NEAR(seed_gain("336.524 s", "87.989 s").value(), 3.8246, 1e-4);
  EXPECT_FALSE(seed_gain("", "87.989 s"));
  EXPECT_EQ(parse_seed_figure("161.0 s")->value, 161.0);
}

TEST(RungWire, TransmitsTimingsAndErrors) {
  RungTiming timing;
  timing.steps.steps = 3;
  timing.steps.samples = 96;
  timing.steps.wall_s = 1.25;
  timing.steps.cpu_s = 2.5;
  timing.steps.phases.seconds[2] = 0.125;
  timing.memory_peak_bytes = int64_t{1} << 40;
  timing.tensor_peak_bytes = 7;
  timing.unit = "samples";
  const RungTiming back = nlohmann::json::parse(nlohmann::json(timing).dump());
  EXPECT_EQ(back.steps.steps, 3);
  EXPECT_EQ(back.steps.samples, 96);
  EXPECT_EQ(back.steps.wall_s, 1.25);
  EXPECT_EQ(back.steps.cpu_s, 2.5);
  EXPECT_EQ(back.steps.phases.seconds, timing.steps.phases.seconds);
  EXPECT_EQ(back.memory_peak_bytes, int64_t{1} << 40);
  EXPECT_EQ(back.tensor_peak_bytes, 7);
  EXPECT_EQ(back.unit, "samples");

  const Error sent = error_of([] { fail(ErrorKind::kData, "what", "where", "Try"); });
  const Error found = error_of([&] { throw_from_json(to_json(sent)); });
  EXPECT_EQ(found.exit_code(), 3);
  EXPECT_STREQ(found.what(), sent.what());
}

TEST(RungWire, ASignalInterruptsReading) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, &before);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Wire wire(ends[0]);
  std::atomic<bool> returned = false;
  const pthread_t waiting = pthread_self();
  std::thread other([&] {
    for (int i = 0; i < 3000 && !returned; ++i) {
      pthread_kill(waiting, SIGUSR2);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    close(ends[1]);
  });
  EXPECT_FALSE(next_message(wire, 60'000));
  EXPECT_TRUE(wire.open());
  returned = true;
  other.join();
  EXPECT_FALSE(next_message(wire, -1));
  EXPECT_FALSE(wire.open());
  sigaction(SIGUSR2, &before, nullptr);
}

// With many rungs, sockets can have any descriptor number, also the one that a rung expects.
TEST(RungProcesses, WorkWithAnyDescriptorNumbers) {
  const testing::TempDir dir;
  const std::string program = dir / "rung";
  testing::write_file(program, "#!/bin/sh\necho '{\"ready\": true}' >&3\nread line <&3\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ProcessMeasurerOptions options;
  options.program = program;
  options.folder = dir.path();
  const auto measurer = make_process_measurer(Env::posix(), options);
  std::vector<int> taken;
  for (size_t rung = 0; rung < 120; ++rung) {
    EXPECT_TRUE(measurer->start(0, Recipe())) << rung;
    taken.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  for (const int descriptor : taken) close(descriptor);
}

}  // namespace
}  // namespace saturate
