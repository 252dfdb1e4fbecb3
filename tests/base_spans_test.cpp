// Spans of work by thread.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/spans.h"

namespace saturate {
namespace {

void in_thread(const char* name, const std::function<void()>& body) {
  std::thread([&] {
    pthread_setname_np(pthread_self(), name);
    body();
  }).join();
}

TEST(Spans, AreKeptByThreadAndNest) {
  ASSERT_TRUE(start_spans());
  in_thread("worker", [] {
    const Span outer("outer");
    { const Span inner("inner"); }
    { const Span inner("inner"); }
  });
  in_thread("worker", [] { const Span alone("alone"); });
  in_thread("writer", [] { const Span alone("alone"); });
  const auto tracks = stop_spans();
  ASSERT_EQ(tracks.size(), 3u);
  EXPECT_EQ(tracks[0].thread, "worker 1");
  EXPECT_EQ(tracks[1].thread, "worker 2");
  EXPECT_EQ(tracks[2].thread, "writer");
  const auto& spans = tracks[0].spans;
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_STREQ(spans[2].name, "outer");
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(spans[size_t(i)].begin_ns, spans[2].begin_ns);
    EXPECT_LE(spans[size_t(i)].end_ns, spans[2].end_ns);
  }
  EXPECT_LE(spans[0].end_ns, spans[1].begin_ns);
}

TEST(Spans, NothingIsKeptOutsideARecording) {
  in_thread("worker", [] { const Span before("before"); });
  ASSERT_TRUE(start_spans());
  EXPECT_TRUE(stop_spans().empty());
}

TEST(Spans, OnlyOneRecordingCanBeActive) {
  ASSERT_TRUE(start_spans());
  EXPECT_FALSE(start_spans());
  stop_spans();
  EXPECT_TRUE(start_spans());
  stop_spans();
}

TEST(Spans, SpansAcrossARecordingsEdgeAreInNone) {
  ASSERT_TRUE(start_spans());
  {
    const Span crossing("crossing");
    EXPECT_TRUE(stop_spans().empty());
    ASSERT_TRUE(start_spans());
  }
  EXPECT_TRUE(stop_spans().empty());
}

TEST(Spans, AThreadIsInLaterRecordingsToo) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(start_spans());
    { const Span span("again"); }
    const auto tracks = stop_spans();
    ASSERT_EQ(tracks.size(), 1u);
    EXPECT_EQ(tracks[0].spans.size(), 1u);
  }
}

TEST(Spans, ThreadsMayStartAndEndWhileARecordingEnds) {
  std::atomic<bool> ending = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!ending) const Span span("busy");
    });
  size_t kept = 0;  // one recording may end before any thread runs, but not all
  for (int i = 0; i < 200 || (kept == 0 && i < 60'000); ++i) {
    ASSERT_TRUE(start_spans());
    if (i >= 200) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& track : stop_spans()) {
      kept += track.spans.size();
      for (const auto& span : track.spans) ASSERT_LE(span.begin_ns, span.end_ns);
    }
  }
  ending = true;
  for (auto& thread : threads) thread.join();
  EXPECT_GT(kept, 0u);
}

}  // namespace
}  // namespace saturate
