// The value of watch.trace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate {

enum class TraceKind {
  kNone,
  kSteps,   // trace.json, see tracer.h
  kNsight,  // only cudaProfilerStart() and cudaProfilerStop(), for an external profiler
};

// Steps [first, last], counted from 1 as metrics.jsonl counts them.
struct TraceWindow {
  TraceKind kind = TraceKind::kNone;
  int64_t first = 0, last = 0;
};

constexpr int64_t kMostTracedSteps = 1000;

// "steps:100-110", "nsight:100-110", a single number for a single step, "" for none. Fails with
// kUsage on anything else, and on more than kMostTracedSteps.
TraceWindow parse_trace(const std::string& text, const std::string& where);

// A positive integer, or 0 if `text` is none.
int64_t positive_number(std::string_view text);

}  // namespace saturate
