// Device time by phase, on a device with given times: the phase that is charged, reading late and
// without waiting, and creating marks only once.
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

#include "record/metrics.h"
#include "saturate/trainer.h"
#include "tests/fault_env.h"
#include "trace/device_phases.h"

namespace saturate {
namespace {

// A stream that reaches the next mark at `mark_s`, on a device whose time is `now_s`.
struct PhaseDevice {
  double mark_s = 0, now_s = 0;
  int made = 0, placed = 0, asked = 0;
  bool is_broken = false;
};

class PhaseMark : public TimeMark {
 public:
  explicit PhaseMark(PhaseDevice& device) : device_(device) { ++device.made; }
  void place() override {
    if (device_.is_broken) throw std::runtime_error("the device is lost");
    at_s_ = device_.mark_s;
    ++device_.placed;
  }
  bool reached() const override {
    ++device_.asked;
    return at_s_ <= device_.now_s;
  }
  double seconds_since(const TimeMark& earlier) const override {
    const double from_s = static_cast<const PhaseMark&>(earlier).at_s_;
    // Like a device's events: a mark that is not reached has no time.
    if (at_s_ > device_.now_s || from_s > device_.now_s) throw std::logic_error("read too early");
    return at_s_ - from_s;
  }

 private:
  PhaseDevice& device_;
  double at_s_ = 0;
};

class DevicePhasesTest : public ::testing::Test {
 protected:
  static constexpr int kRing = 8;

  // The stream reaches it at `at_s`.
  void enter(Phase phase, double at_s) {
    device.mark_s = at_s;
    phases.enter(phase);
  }
  // Marks placed after construction.
  int placed() const { return device.placed - kRing; }

  PhaseDevice device;
  DevicePhases phases{[this] { return std::make_unique<PhaseMark>(device); }, kRing};
};

TEST_F(DevicePhasesTest, AreFromOneMarkToTheNext) {
  device.now_s = 100;
  enter(Phase::kWait, 1);
  enter(Phase::kForward, 3);
  enter(Phase::kBackward, 7);
  enter(Phase::kForward, 15);
  enter(Phase::kOptimizer, 16);
  const PhaseTimes times = phases.times();
  EXPECT_EQ(times[Phase::kWait], 2);
  EXPECT_EQ(times[Phase::kForward], 4 + 1);
  EXPECT_EQ(times[Phase::kBackward], 8);
  EXPECT_EQ(times[Phase::kOptimizer], 0) << "it has no end yet";
  EXPECT_EQ(times.total(), 15) << "nothing is counted twice, or before the first mark";
}

TEST_F(DevicePhasesTest, TimeBetweenTwoPhasesCountsForTheFirst) {
  device.now_s = 100;
  enter(Phase::kForward, 1);
  enter(Phase::kOther, 2);
  enter(Phase::kBackward, 4);
  enter(Phase::kOther, 5);
  enter(Phase::kBackward, 6);
  enter(Phase::kHost, 9);
  EXPECT_EQ(placed(), 3);
  EXPECT_EQ(phases.times()[Phase::kForward], 3);
  EXPECT_EQ(phases.times()[Phase::kBackward], 5);
  EXPECT_EQ(phases.times()[Phase::kOther], 0);
}

TEST_F(DevicePhasesTest, AreReadUpToTheStreamsLastMark) {
  enter(Phase::kForward, 1);
  enter(Phase::kBackward, 3);
  enter(Phase::kOptimizer, 9);
  EXPECT_EQ(phases.times().total(), 0);
  device.now_s = 8;
  EXPECT_EQ(phases.times()[Phase::kForward], 2);
  EXPECT_EQ(phases.times().total(), 2);
  device.now_s = 9;
  EXPECT_EQ(phases.times()[Phase::kBackward], 6);
  EXPECT_EQ(phases.times().total(), 8);
}

TEST_F(DevicePhasesTest, ReuseMarksAndQuerySeldom) {
  for (int i = 0; i < 1000; ++i) {
    device.now_s = i - 3;  // some marks behind
    enter(i % 2 ? Phase::kBackward : Phase::kForward, i);
  }
  EXPECT_EQ(device.made, kRing);
  EXPECT_EQ(placed(), 1000) << "none was skipped";
  EXPECT_LE(device.asked, 1000);
  device.now_s = 1000;
  EXPECT_EQ(phases.times()[Phase::kForward], 500);
  EXPECT_EQ(phases.times()[Phase::kBackward], 499);
}

TEST_F(DevicePhasesTest, ADeviceThatIsTooFarBehindIsSkippedWithoutWaiting) {
  for (int i = 0; i < 2 * kRing; ++i) enter(i % 2 ? Phase::kBackward : Phase::kForward, i);
  EXPECT_EQ(placed(), kRing);
  device.now_s = 100;
  enter(Phase::kForward, 50);
  enter(Phase::kBackward, 60);
  enter(Phase::kWait, 61);
  const PhaseTimes times = phases.times();
  EXPECT_EQ(times[Phase::kForward], 4 + 10);
  EXPECT_EQ(times[Phase::kBackward], 3 + 1) << "the last phase before the gap has no end";
}

TEST_F(DevicePhasesTest, SkippedTimeIsInNoPhase) {
  device.now_s = 100;
  enter(Phase::kForward, 1);
  phases.skip_interval();
  enter(Phase::kForward, 10);
  enter(Phase::kBackward, 12);
  EXPECT_EQ(phases.times().total(), 2);
}

TEST_F(DevicePhasesTest, AFailingMarkEndsOnlyTheMeasurement) {
  device.now_s = 100;
  enter(Phase::kForward, 1);
  enter(Phase::kBackward, 3);
  EXPECT_EQ(phases.times()[Phase::kForward], 2);
  device.is_broken = true;
  enter(Phase::kOptimizer, 4);
  device.is_broken = false;
  enter(Phase::kHost, 5);
  EXPECT_EQ(placed(), 2);
  EXPECT_EQ(phases.times().total(), 2);
}

TEST_F(DevicePhasesTest, FollowTheLedgersScopes) {
  FaultEnv env(Env::posix());
  Ledger ledger(env);
  EXPECT_FALSE(ledger.device_times());
  ledger.time_on(&phases);
  device.now_s = 100;
  const auto at = [&](double seconds) { device.mark_s = seconds; };
  {
    at(1);
    const Ledger::Scope backward(ledger, Phase::kBackward);
    at(4);
    {
      const Ledger::Scope reduce(ledger, Phase::kReduce);
      at(6);
    }
    at(9);
  }
  const Ledger::Scope host(ledger, Phase::kHost);
  const PhaseTimes times = ledger.device_times().value();
  EXPECT_EQ(times[Phase::kBackward], 3 + 3);
  EXPECT_EQ(times[Phase::kReduce], 2);
}

TEST_F(DevicePhasesTest, NoMarkIsPlacedInHostOnlyScopes) {
  FaultEnv env(Env::posix());
  Ledger ledger(env);
  ledger.time_on(&phases);
  device.now_s = 100;
  const Ledger::Scope forward(ledger, Phase::kForward);
  {
    const Ledger::HostOnly recording(ledger);
    const Ledger::Scope backward(ledger, Phase::kBackward);
  }
  EXPECT_EQ(placed(), 1);
  device.mark_s = 7;
  const Ledger::Scope host(ledger, Phase::kHost);
  EXPECT_EQ(placed(), 2);
  EXPECT_EQ(ledger.device_times().value()[Phase::kForward], 7) << "one span";
}

TEST_F(DevicePhasesTest, ADisabledLedgerPlacesNoMarkAndItsTimeIsInNoPhase) {
  FaultEnv env(Env::posix());
  Ledger ledger(env);
  ledger.time_on(&phases);
  device.now_s = 100;
  { const Ledger::Scope forward(ledger, Phase::kForward); }
  ledger.set_enabled(false);
  device.mark_s = 50;
  { const Ledger::Scope forward(ledger, Phase::kForward); }
  ledger.set_enabled(true);
  EXPECT_EQ(placed(), 1);
  { const Ledger::Scope forward(ledger, Phase::kForward); }
  device.mark_s = 53;
  { const Ledger::Scope host(ledger, Phase::kHost); }
  EXPECT_EQ(ledger.device_times().value().total(), 3);
}

TEST(DevicePhaseTimes, AreWrittenAndReadBack) {
  MetricsRecord record;
  record.kind = "step";
  EXPECT_NE(to_json_line(record).find("\"device_phases\":null"), std::string::npos);
  EXPECT_FALSE(from_json_line(to_json_line(record)).value().device_phases);
  record.device_phases.emplace().seconds[size_t(Phase::kForward)] = 0.25;
  const std::string line = to_json_line(record);
  EXPECT_NE(line.find("\"phases\":null"), std::string::npos) << "they are not the host's";
  const MetricsRecord found = from_json_line(line).value();
  EXPECT_EQ(found.device_phases.value()[Phase::kForward], 0.25);
  EXPECT_EQ(to_json_line(found), line);
}

TEST(DevicePhaseTimes, AreBesideTheHostsInTheSummaryOf80Columns) {
  TrainResult result;
  result.wall_s = 90000;
  result.steps = result.steps_here = 100;
  result.phases.seconds[size_t(Phase::kForward)] = 60000;
  result.phases.seconds[size_t(Phase::kOther)] = 30000;
  result.tensor_peaks.bytes[size_t(Phase::kForward)] = int64_t{100000} << 20;
  const auto line_of = [&](const char* name) {
    std::istringstream lines(format_summary(result));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 80u) << line;
      if (line.find(name) != std::string::npos) return line;
    }
    return std::string();
  };
  EXPECT_EQ(line_of("where time went").find("GPU"), std::string::npos);
  const std::string alone = line_of("forward ");
  result.device_phases.emplace().seconds[size_t(Phase::kForward)] = 45000.5;
  EXPECT_NE(line_of("where time went").find("GPU, s  ms a step"), std::string::npos);
  EXPECT_NE(line_of("forward ").find(" 60000.00   600000.00    66.7% 45000.50  450005.00"),
            std::string::npos)
      << line_of("forward ");
  EXPECT_EQ(line_of("forward ").size(), alone.size() + 20);
  EXPECT_NE(line_of("wall ").find("45000.50"), std::string::npos);
}

}  // namespace
}  // namespace saturate
