// CPU streams, and the checker of their use: each planted mistake is reported with its line.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "saturate/data/stream.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using std::chrono_literals::operator""ms;

TEST(ThreadStream, RunsWorkInOrderBesideTheCaller) {
  const auto stream = make_thread_stream("a");
  std::vector<int> done;
  std::atomic<bool> go{false};
  stream->submit([&] {
    while (!go) std::this_thread::sleep_for(1ms);
  });
  for (int i = 0; i < 5; ++i) stream->submit([&done, i] { done.push_back(i); });
  const auto event = stream->record();
  EXPECT_FALSE(event->done());
  go = true;
  stream->host_waits(event);
  EXPECT_TRUE(event->done());
  EXPECT_EQ(done, (std::vector{0, 1, 2, 3, 4}));
}

TEST(ThreadStream, WaitsForAnEventOfAnother) {
  const auto first = make_thread_stream("first"), second = make_thread_stream("second");
  int value = 0, seen = -1;
  first->submit([&] {
    std::this_thread::sleep_for(20ms);
    value = 7;
  });
  second->wait(first->record());
  second->submit([&] { seen = value; });
  second->host_waits(second->record());
  EXPECT_EQ(seen, 7);
}

TEST(ThreadStream, AnErrorOfWorkIsThrownByEveryLaterEvent) {
  const auto first = make_thread_stream("first"), second = make_thread_stream("second");
  bool ran = false;
  first->submit([] { throw std::runtime_error("broken"); });
  first->submit([&] { ran = true; });
  second->wait(first->record());
  second->submit([&] { ran = true; });
  const auto event = second->record();
  EXPECT_THROW(second->host_waits(event), std::runtime_error);
  EXPECT_THROW(first->host_waits(first->record()), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(ThreadStream, MayBeDestroyedWithUnfinishedWork) {
  std::atomic<int> ran{0};
  {
    const auto stream = make_thread_stream("a");
    for (int i = 0; i < 100'000; ++i)
      stream->submit([&] {
        ++ran;
        std::this_thread::sleep_for(2ms);
      });
  }
  EXPECT_LT(ran, 100'000);
}

// A pipeline of two streams, with one mistake of each kind if requested; returns the line of the
// mistake.
enum class Plant { kNone, kNoWait, kKeptByItsMaker, kNotKept, kNotPinned, kNoWaitBeforeReuse };

int mistaken_line(const Error& error) {
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  const int line = int(error.thrown_at().line());
  EXPECT_EQ(error.where(), "base_stream_test.cpp:" + std::to_string(line));
  return line;
}

int expected_line = 0;
#define MISTAKE(call) (expected_line = __LINE__, call)

void run(Plant plant) {
  StreamChecker checker;
  const auto copy = make_thread_stream("copy", &checker),
             train = make_thread_stream("train", &checker);
  for (int batch = 0; batch < 3; ++batch) {
    const auto host = copy->host_memory("batch", /*pinned=*/plant != Plant::kNotPinned);
    auto images = copy->makes("images");
    MISTAKE(copy->copies_async(host, images));
    const auto copied = copy->record();
    if (plant != Plant::kNoWait) train->wait(copied);
    if (plant == Plant::kKeptByItsMaker) MISTAKE(copy->keeps(images));
    if (plant != Plant::kNotKept && plant != Plant::kKeptByItsMaker) train->keeps(images);
    MISTAKE(train->reads(images));
    if (plant == Plant::kNoWaitBeforeReuse) MISTAKE(copy->writes(images));
    copy->host_waits(copied);
    copy->frees(host);
    train->frees(images);
  }
}

TEST(StreamChecker, FindsNothingInACorrectPipeline) {
  run(Plant::kNone);
}

TEST(StreamChecker, FindsAMissingWait) {
  const Error error = error_of([] { run(Plant::kNoWait); });
  EXPECT_EQ(mistaken_line(error), expected_line);
  EXPECT_EQ(
      error.reason().find("stream \"train\" reads \"images\" without waiting for stream \"copy\""),
      0u)
      << error.reason();
}

TEST(StreamChecker, FindsAWriteThatDoesNotWaitForAReader) {
  const Error error = error_of([] { run(Plant::kNoWaitBeforeReuse); });
  EXPECT_EQ(mistaken_line(error), expected_line);
  EXPECT_NE(error.reason().find("which reads it at base_stream_test.cpp:"), std::string::npos);
}

TEST(StreamChecker, FindsARecordStreamWithTheProducersStream) {
  const Error error = error_of([] { run(Plant::kKeptByItsMaker); });
  EXPECT_EQ(mistaken_line(error), expected_line);
  EXPECT_EQ(error.reason().find("record_stream names stream \"copy\", which made"), 0u)
      << error.reason();
}

TEST(StreamChecker, FindsMemoryFreedWhileInUse) {
  const Error error = error_of([] { run(Plant::kNotKept); });
  EXPECT_EQ(mistaken_line(error), expected_line);
  EXPECT_NE(error.reason().find("may still do so when it is freed at"), std::string::npos);
}

TEST(StreamChecker, FindsAnAsyncCopyFromMemoryThatIsNotPinned) {
  const Error error = error_of([] { run(Plant::kNotPinned); });
  EXPECT_EQ(mistaken_line(error), expected_line);
  EXPECT_NE(error.reason().find("\"batch\", which is not pinned"), std::string::npos);
}

// A wait through a third stream counts, and so does one of the host.
TEST(StreamChecker, FollowsTransitiveOrder) {
  StreamChecker checker;
  const auto a = make_host_stream("a", &checker), b = make_host_stream("b", &checker),
             c = make_host_stream("c", &checker);
  const auto memory = a->makes("memory");
  b->wait(a->record());
  c->wait(b->record());
  c->reads(memory);
  a->host_waits(c->record());
  b->writes(memory);
  EXPECT_THROW(a->reads(memory), Error);
}

}  // namespace
}  // namespace saturate
