// Spans of work by thread, recorded for a trace: the loader's threads and the checkpoint writer
// beside the step.
//
// A process has at most one recording at a time, like one profiler. Without one, a Span costs one
// load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

struct RecordedSpan {
  const char* name;          // a literal
  int64_t begin_ns, end_ns;  // of Env::posix().now_ns()
};

// One thread's spans. They nest: two spans either contain one another or do not overlap.
struct SpanTrack {
  std::string thread;               // its name, numbered if several have the same
  std::vector<RecordedSpan> spans;  // ordered by end
  int64_t dropped = 0;              // spans beyond the first kMostSpans
};

constexpr size_t kMostSpans = size_t{1} << 17;  // per thread

// Begins a recording; false if one is in progress.
bool start_spans();
// Ends it: returns the spans within it, by thread in the order of their first end.
std::vector<SpanTrack> stop_spans();

// For any thread.
class Span {
 public:
  // `name` must be a literal.
  explicit Span(const char* name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* name_;
  uint32_t recording_;  // 0: none
  int64_t begin_ns_ = 0;
};

}  // namespace saturate
