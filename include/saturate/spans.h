// Spans of work by thread, recorded while a trace is made: what the loader's threads and the writer
// of checkpoints do beside the step.
//
// There is one recording at a time in a process, as there is one profiler. While there is none, a
// Span costs one load.
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

// What one thread did. Its spans nest: of two, one lies within the other, or they do not overlap.
struct SpanTrack {
  std::string thread;               // its name, with a number where several have the same
  std::vector<RecordedSpan> spans;  // in the order of their ends
  int64_t dropped = 0;              // spans beyond the first kMostSpans
};

constexpr size_t kMostSpans = size_t{1} << 17;  // of one thread

// Begins a recording; false where one is under way.
bool start_spans();
// Ends it: the spans that began and ended within it, by thread in the order of their first end.
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
