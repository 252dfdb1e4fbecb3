// The ledger, metrics.jsonl and the progress display, with a clock that only tests advance.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files.h"
#include "record/metrics.h"
#include "saturate/progress.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

constexpr int64_t kMs = 1'000'000;

class FakeClock : public ::testing::Test {
 protected:
  FakeClock() : env(Env::posix()) { env.use_fake_clock(); }
  FaultEnv env;
};

using LedgerTest = FakeClock;

TEST_F(LedgerTest, AnInnerPhaseIsNotChargedToTheOuterOne) {
  Ledger ledger(env);
  env.sleep_ns(1 * kMs);
  {
    Ledger::Scope outer(ledger, Phase::kHost);
    env.sleep_ns(2 * kMs);
    {
      Ledger::Scope inner(ledger, Phase::kWait);
      env.sleep_ns(4 * kMs);
    }
    env.sleep_ns(8 * kMs);
  }
  const PhaseTimes times = ledger.times();
  EXPECT_NEAR(times[Phase::kHost], 0.010, 1e-12);
  EXPECT_NEAR(times[Phase::kWait], 0.004, 1e-12);
  EXPECT_NEAR(times[Phase::kOther], 0.001, 1e-12);
}

TEST_F(LedgerTest, PhasesSumToWallTimeAlsoInsideAScope) {
  Ledger ledger(env);
  Ledger::Scope forward(ledger, Phase::kForward);
  for (int i = 0; i < 10; ++i) {
    Ledger::Scope wait(ledger, Phase::kWait);
    env.sleep_ns(i * kMs);
    EXPECT_NEAR(ledger.times().total(), double(env.now_ns()) * 1e-9, 1e-12);
  }
  const PhaseTimes mark = ledger.times();
  env.sleep_ns(5 * kMs);
  EXPECT_NEAR((ledger.times() - mark)[Phase::kForward], 0.005, 1e-12);
}

TEST_F(LedgerTest, TheNetworksPartIsOfTheWaitAndNotMore) {
  Ledger ledger(env);
  const auto wait = [&](int ms, int network_ms) {
    const Ledger::Scope scope(ledger, Phase::kWait);
    env.sleep_ns(ms * kMs);
    ledger.add_network_wait(network_ms * kMs);
  };
  wait(10, 4);
  const PhaseTimes mark = ledger.times();
  EXPECT_NEAR(mark.network_wait, 0.004, 1e-12);
  wait(10, 5);
  const PhaseTimes since = ledger.times() - mark;
  EXPECT_NEAR(since.network_wait, 0.005, 1e-12);
  EXPECT_NEAR(since.total(), 0.010, 1e-12) << "it is in the wait already";
  ledger.set_enabled(false);
  wait(10, 5);
  EXPECT_NEAR(ledger.times().network_wait, 0.009, 1e-12);
  ledger.set_enabled(true);
  wait(1, 100);
  EXPECT_NEAR(ledger.times().network_wait, 0.021, 1e-12) << "of two clocks";
}

TEST(Metrics, TheNetworksPartIsOptional) {
  MetricsRecord record;
  record.kind = "step";
  record.phases.emplace().seconds[size_t(Phase::kWait)] = 0.25;
  EXPECT_EQ(to_json_line(record).find("network"), std::string::npos) << "as of local data";
  EXPECT_EQ(from_json_line(to_json_line(record))->phases->network_wait, 0);
  record.phases->network_wait = 0.125;
  const std::string line = to_json_line(record);
  EXPECT_EQ(nlohmann::json::parse(line)["network_wait_s"], 0.125);
  EXPECT_EQ(from_json_line(line)->phases->network_wait, 0.125);
  EXPECT_EQ(from_json_line(line)->phases->total(), 0.25);
  EXPECT_TRUE(is_record_key("network_wait_s"));
}

TEST(Metrics, UnknownIsNullAndKeysAreTheDocumentedOnes) {
  MetricsRecord record;
  record.kind = "step";
  record.step = 7;
  record.loss = 1.5;
  record.phases.emplace().seconds[size_t(Phase::kWait)] = 0.25;
  EXPECT_TRUE(nlohmann::json::parse(to_json_line(record))["tensor_peak_bytes"].is_null());
  record.tensor_peak_bytes.emplace().bytes[size_t(Phase::kForward)] = 1000;
  const auto json = nlohmann::json::parse(to_json_line(record));
  for (const char* key :
       {"kind", "step", "epoch", "samples", "time_s", "loss", "accuracy", "accuracy5", "lr",
        "images_per_s", "phases", "memory_peak_bytes", "tensor_peak_bytes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["loss"], 1.5);
  EXPECT_TRUE(json["accuracy"].is_null());
  EXPECT_EQ(json["phases"]["wait"], 0.25);
  EXPECT_EQ(json["tensor_peak_bytes"], nlohmann::json({{"forward", 1000}}));
}

TEST(MetricsFile, AResumedRunDropsRepeatedStepsAndATruncatedLine) {
  const testing::TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  {
    MetricsWriter writer(Env::posix(), file);
    for (int step = 1; step <= 4; ++step) {
      MetricsRecord record;
      record.kind = "step";
      record.step = step;
      writer.write(record);
    }
  }
  std::ofstream(file, std::ios::app) << "{\"kind\":\"st";
  truncate_file(file, end_of_records(Env::posix(), file, 2));
  MetricsRecord last;
  last.kind = "end";
  last.step = 9;
  MetricsWriter(Env::posix(), file).write(last);
  std::ifstream in(file);
  std::vector<int> steps;
  for (std::string line; std::getline(in, line);)
    steps.push_back(nlohmann::json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 9}));
}

TEST(MetricsFile, IsCutWithoutReadingAllOfIt) {
  const testing::TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  const auto line = [](int step, const std::string& more = "") {
    return "{\"kind\":\"step\",\"step\":" + std::to_string(step) + more + "}\n";
  };
  std::string kept;
  for (int step = 1; step < 20'000; ++step) kept += line(step);
  kept += line(20'000, ",\"note\":\"" + std::string(150'000, 'x') + "\"");
  testing::write_file(file, kept + line(20'001) + "{\"kind\":\"end\",\"step\":20000}\n{\"kin");
  FaultEnv files(Env::posix());
  EXPECT_EQ(end_of_records(files, file, 20'000), kept.size());
  EXPECT_LE(files.count({FileOp::kRead, ""}), 3u);
  EXPECT_EQ(end_of_records(files, file, 2), line(1).size() + line(2).size());
  EXPECT_EQ(end_of_records(files, file, 0), 0u);
}

class ProgressTest : public FakeClock {
 protected:
  std::string shown() {
    std::fflush(file);
    std::rewind(file);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    return text;
  }
  ~ProgressTest() override { std::fclose(file); }
  std::FILE* file = std::tmpfile();
};

TEST_F(ProgressTest, ALogGetsPlainLinesOccasionally) {
  {
    Progress progress(env, "train", "steps", 100, Progress::Style::kAuto, file);
    for (int i = 1; i <= 50; ++i) {
      env.sleep_ns(1000 * kMs);
      progress.update(i, "loss 1");
    }
  }
  const std::string text = shown();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("train  50% 50/100 steps  loss 1  left 50s"), std::string::npos) << text;
}

TEST_F(ProgressTest, ATerminalGetsABarThatEndsFull) {
  {
    Progress progress(env, "train", "steps", 4, Progress::Style::kBar, file);
    for (int i = 1; i <= 4; ++i) {
      env.sleep_ns(10 * kMs);
      progress.update(i, "");
    }
    progress.note("kept");
  }
  const std::string text = shown();
  EXPECT_NE(text.find("\r"), std::string::npos);
  EXPECT_NE(text.find("[====================] 100% 4/4 steps"), std::string::npos) << text;
  EXPECT_NE(text.find("kept\n"), std::string::npos);
}

TEST_F(ProgressTest, TimeLeftCountsOnlyThisProcess) {
  Progress progress(env, "train", "steps", 100, Progress::Style::kLines, file);
  progress.start_at(90);
  env.sleep_ns(10000 * kMs);
  progress.update(95, "");
  EXPECT_NE(shown().find("left 10s"), std::string::npos);
}

TEST(FormatDuration, PicksTheUnitAReaderExpects) {
  EXPECT_EQ(format_duration(3.14), "3.1s");
  EXPECT_EQ(format_duration(42.4), "42s");
  EXPECT_EQ(format_duration(65), "1m 05s");
  EXPECT_EQ(format_duration(7380), "2h 03m");
  EXPECT_EQ(format_duration(std::nullopt), "n/a");
}

}  // namespace
}  // namespace saturate
