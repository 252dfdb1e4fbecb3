// Event files: their frames, and TensorBoard's own reading of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/wall_clock.h"
#include "record/event_file.h"
#include "record/sinks.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

// Bit by bit, from the polynomial; slow and plain.
uint32_t crc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= uint8_t(c);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

uint32_t masked(uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T>
T read_number(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The events of a file, each checked against its frame.
std::vector<std::string> read_events(const std::string& bytes) {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < bytes.size()) {
    const auto length = read_number<uint64_t>(bytes, at);
    EXPECT_EQ(read_number<uint32_t>(bytes, at + 8), masked(crc32c(bytes.substr(at, 8))));
    events.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(read_number<uint32_t>(bytes, at + 12 + length), masked(crc32c(events.back())));
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size());
  return events;
}

TEST(EventFrames, HaveLengthAndTwoChecksums) {
  ASSERT_EQ(crc32c("123456789"), 0xe3069283u) << "the check value that catalogues of CRCs give";
  for (const size_t length : {0u, 1u, 9u, 1000u, 70000u}) {
    const std::string event = testing::noise_jpeg(200, 200, length).substr(0, length);
    const auto events = read_events(framed(event) + framed("next"));
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[0], event);
  }
}

// By the field numbers and wire types of event.proto and summary.proto.
TEST(Events, AreTensorBoardsProtocolBuffers) {
  const auto hex = [](const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
      static const char* const kDigits = "0123456789abcdef";
      text += kDigits[uint8_t(c) >> 4];
      text += kDigits[uint8_t(c) & 15];
    }
    return text;
  };
  const std::string wall = "09000000000000f83f";  // 1.5
  EXPECT_EQ(hex(file_version_event(1.5)), wall + "1a0d" + hex("brain.Event:2"));
  EXPECT_EQ(hex(restart_event(1.5, 3)), wall + "1003" + "3a02" + "0801");
  EXPECT_EQ(hex(scalars_event(1.5, 300, {{"a", 0.5f}})),
            wall + "10ac02" + "2a0a" + "0a08" + "0a0161" + "150000003f");
}

MetricsRecord record(const std::string& kind, int64_t step, double loss) {
  MetricsRecord record;
  record.kind = kind;
  record.step = step;
  record.loss = loss;
  record.accuracy = loss / 8;
  if (kind == "step") {
    record.phases.emplace();
    record.phases->seconds[size_t(Phase::kWait)] = 1;
    record.phases->seconds[size_t(Phase::kForward)] = 3;
  }
  return record;
}

Recipe recipe_with_sinks() {
  return parse_recipe("[data]\nsource = \"synth:\"\n", "test");
}

void write_run(const std::string& folder, int64_t begin, int64_t end) {
  auto sinks = open_sinks(Env::posix(), recipe_with_sinks(), folder, begin);
  ASSERT_EQ(sinks.size(), 1u);
  sinks[0]->start();
  for (int64_t step = begin + 1; step <= end; ++step)
    sinks[0]->write(record("step", step, 1 / double(begin + step)));
  sinks[0]->write(record("eval", end, 0.25));
  sinks[0]->write(record("end", end, 0.25));
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& file : Env::posix().list(folder + "/tb")) files.push_back(file.name);
  return files;
}

TEST(TensorBoardSink, OneFilePerProcessAndLaterFilesSortLast) {
  const TempDir dir;
  for (int i = 0; i < 3; ++i) write_run(dir.path(), 2 * i, 2 * i + 2);
  const auto files = event_files(dir.path());
  ASSERT_EQ(files.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const auto events = read_events(read_text(dir / ("tb/" + files[i])));
    EXPECT_EQ(events.size(), i == 0 ? 6u : 7u)
        << "version, restart, two texts, two steps, one eval";
  }
}

// A run that was killed before its first checkpoint begins again.
TEST(TensorBoardSink, ARunThatBeginsAgainReplacesAllSteps) {
  const TempDir dir;
  for (int i = 0; i < 2; ++i) write_run(dir.path(), 0, 2);
  const auto files = event_files(dir.path());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(read_events(read_text(dir / ("tb/" + files[0]))).size(), 6u);
  const auto again = read_events(read_text(dir / ("tb/" + files[1])));
  ASSERT_EQ(again.size(), 7u);
  constexpr size_t kTime = 1 + sizeof(double);  // comes first
  EXPECT_EQ(again[1].substr(kTime), restart_event(1, 1).substr(kTime));
}

// TensorBoard's reader: $SATURATE_PYTHON, or python3.
class TensorBoardReader : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("SATURATE_PYTHON");
    python = given ? given : "python3";
    if (std::system(("'" + python + "' -c 'import tensorboard' >/dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP() << "no Python with tensorboard: set SATURATE_PYTHON to one to run this";
  }
  json read() {
    const std::string command =
        "'" + python + "' '" + testing::source_path("tests/oracles/read_events.py") + "' '" +
        (dir / "tb") + "' >'" + (dir / "out") + "' 2>'" + (dir / "err") + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_text(dir / "err");
    return json::parse(read_text(dir / "out"));
  }
  // [step, value] of each point; empty if the tag is unknown.
  static json points_of(const json& found, const std::string& tag) {
    return found["scalars"].value(tag, json::array());
  }
  TempDir dir;
  std::string python;
};

TEST_F(TensorBoardReader, FindsTagsStepsAndValuesExactly) {
  write_run(dir.path(), 0, 5);
  const json found = read();
  EXPECT_EQ(found["scalars"].size(), 4u + 11u);
  const json losses = points_of(found, "loss/train"),
             waits = points_of(found, "share_of_time/wait");
  ASSERT_EQ(losses.size(), 5u);
  for (int step = 1; step <= 5; ++step) {
    EXPECT_EQ(losses[size_t(step - 1)][0], step);
    EXPECT_EQ(losses[size_t(step - 1)][1].get<double>(), double(float(1 / double(step))));
  }
  EXPECT_EQ(points_of(found, "accuracy/eval"), json::parse("[[5, 0.03125]]"));
  ASSERT_EQ(waits.size(), 5u);
  EXPECT_EQ(waits[4], json::parse("[5, 0.25]"));
  EXPECT_EQ(found["plugins"]["recipe"], "text");
  EXPECT_NE(found["texts"]["recipe"].get<std::string>().find("    source = 'synth:'\n"),
            std::string::npos)
      << found["texts"]["recipe"];
  EXPECT_NE(found["texts"]["host"].get<std::string>().find("libtorch"), std::string::npos);
}

TEST_F(TensorBoardReader, ATruncatedEndLosesNoEventBeforeIt) {
  write_run(dir.path(), 0, 5);
  const std::string path = dir / ("tb/" + event_files(dir.path())[0]);
  const std::string whole = read_text(path);
  for (const size_t cut : {1u, 5u, 20u}) {
    write_file(path, whole.substr(0, whole.size() - cut));
    const json found = read();
    EXPECT_EQ(points_of(found, "loss/train").size(), 5u) << cut;
    EXPECT_FALSE(found["scalars"].contains("loss/eval")) << cut;
  }
}

TEST_F(TensorBoardReader, ARunThatBeginsAgainHasOnlyItsOwnSteps) {
  write_run(dir.path(), 0, 5);
  write_run(dir.path(), 0, 3);
  EXPECT_EQ(points_of(read(), "loss/train").size(), 3u);
}

TEST_F(TensorBoardReader, AResumedRunReplacesTheStepsItRepeats) {
  write_run(dir.path(), 0, 5);
  write_run(dir.path(), 3, 6);
  const json points = points_of(read(), "loss/train");
  ASSERT_EQ(points.size(), 6u) << points;
  for (int step = 1; step <= 6; ++step) EXPECT_EQ(points[size_t(step - 1)][0], step);
  EXPECT_EQ(points[2][1].get<double>(), double(float(1 / 3.0)));
  EXPECT_EQ(points[3][1].get<double>(), double(float(1 / 7.0)));
}

}  // namespace
}  // namespace saturate
