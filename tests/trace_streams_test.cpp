// A stream clock on a device with given times: its sums, and that it never waits.
#include <gtest/gtest.h>

#include <stdexcept>

#include "record/metrics.h"
#include "trace/stream_clock.h"

namespace saturate {
namespace {

// A device that defines when each mark, in the order of placement, is reached.
struct TimedDevice {
  std::vector<double> reached_s;  // by placement
  double now_s = 0;
  size_t placed = 0;
  int made = 0;
  bool is_broken = false;
};

class GivenMark : public TimeMark {
 public:
  explicit GivenMark(TimedDevice& device) : device_(device) { ++device.made; }
  void place() override {
    if (device_.is_broken) throw std::runtime_error("the device is lost");
    at_s_ = device_.reached_s.at(device_.placed++);
  }
  bool reached() const override { return at_s_ <= device_.now_s; }
  double seconds_since(const TimeMark& earlier) const override {
    const double from_s = static_cast<const GivenMark&>(earlier).at_s_;
    // Like a device's events: a mark that is not reached has no time.
    if (at_s_ > device_.now_s || from_s > device_.now_s) throw std::logic_error("read too early");
    return at_s_ - from_s;
  }

 private:
  TimedDevice& device_;
  double at_s_ = 0;
};

class StreamClockTest : public ::testing::Test {
 protected:
  void work(const char* stream) { StreamClock::Work busy(&clock, stream); }
  void expect(const std::vector<StreamTime>& expected) {
    const auto found = clock.times();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].stream, expected[i].stream);
      EXPECT_DOUBLE_EQ(found[i].busy_s, expected[i].busy_s) << found[i].stream;
      EXPECT_DOUBLE_EQ(found[i].idle_s, expected[i].idle_s) << found[i].stream;
    }
  }

  TimedDevice device;
  StreamClock clock{[this] { return std::make_unique<GivenMark>(device); }};
};

TEST_F(StreamClockTest, SumsWorkAndIdleGapsByStream) {
  device.reached_s = {1, 3, 0, 1, 4, 7, 6, 6.5};
  work("step");
  work("copy");
  work("step");
  work("copy");
  device.now_s = 100;
  expect({{"copy", 1.5, 5}, {"step", 5, 1}});
}

TEST_F(StreamClockTest, CountsWorkThatIsDoneAndTheRestLater) {
  device.reached_s = {1, 3, 5, 9, 9, 10};
  for (int i = 0; i < 3; ++i) work("step");
  expect({{"step", 0, 0}});
  device.now_s = 8;  // in the middle of the second
  expect({{"step", 2, 0}});
  device.now_s = 9;
  expect({{"step", 6, 2}});
  device.now_s = 10;
  expect({{"step", 7, 2}});
}

TEST_F(StreamClockTest, SkippedTimeIsNotIdle) {
  device.reached_s = {1, 2, 10, 11, 13, 14};
  device.now_s = 20;
  work("step");
  clock.skip_interval();
  work("step");
  work("step");
  expect({{"step", 3, 2}});
}

TEST_F(StreamClockTest, ReusesMarksThatTheStreamHasPassed) {
  for (int i = 0; i < 2000; ++i) device.reached_s.push_back(i);
  for (int i = 0; i < 1000; ++i) {
    device.now_s = 2 * i - 8;  // a few pieces behind
    work("step");
  }
  EXPECT_LE(device.made, 16);
  device.now_s = 2000;
  expect({{"step", 1000, 999}});
}

TEST_F(StreamClockTest, AFailingMarkLosesOnlyAMeasurement) {
  device.reached_s = {1, 2, 5, 6, 7, 8};
  device.now_s = 20;
  work("step");
  {
    StreamClock::Work busy(&clock, "step");
    device.is_broken = true;
  }
  device.is_broken = false;
  device.placed = 4;
  work("step");
  expect({{"step", 2, 0}});
}

TEST_F(StreamClockTest, RecordsNothingWhileItIsOff) {
  device.reached_s = {1, 2, 5, 6};
  device.now_s = 20;
  work("step");
  clock.set_enabled(false);
  work("step");
  clock.set_enabled(true);
  work("step");
  expect({{"step", 2, 0}});
}

TEST_F(StreamClockTest, WithoutAClockNothingIsRecorded) {
  const StreamClock::Work busy(nullptr, "step");
  EXPECT_EQ(device.made, 0);
}

TEST(StreamTime, IsWrittenByStreamAndReadBack) {
  MetricsRecord record;
  record.kind = "step";
  EXPECT_NE(to_json_line(record).find("\"streams\":null"), std::string::npos);
  record.streams = {{"copy", 0.5, 2}, {"step", 3, 0.25}};
  const std::string line = to_json_line(record);
  EXPECT_NE(line.find("\"streams\":{\"copy\":{\"busy_s\":0.5,\"idle_s\":2.0},\"step\":{"),
            std::string::npos)
      << line;
  const MetricsRecord found = from_json_line(line).value();
  EXPECT_EQ(to_json_line(found), line);
  const auto rest = time_between({{"step", 1, 0.25}}, found.streams);
  EXPECT_EQ(rest[0].busy_s, 0.5);
  EXPECT_EQ(rest[1].busy_s, 2);
  EXPECT_EQ(rest[1].idle_s, 0);
}

}  // namespace
}  // namespace saturate
