// The part of a recipe about monitoring a run: records, telemetry, traces. See recipe.h.
#pragma once

#include <cstdint>
#include <string>

namespace saturate {

struct WatchOptions {
  int every = 10;  // steps between two "step" lines of metrics.jsonl
  bool progress = true;
  // Additional outputs of records; see sinks.h.
  bool tensorboard = true;
  bool csv = false;
  int prometheus_port = 0;  // 0: none
  std::string prometheus_address = "127.0.0.1";
  std::string prometheus_hosts;  // allowed Host names, separated by commas; "*": any
  double telemetry_hz = 1;       // readings a second; 0: none
  int samples = 16;              // images saved for the report: of training, and of mistakes
  int histograms = 0;            // steps between histograms; 0: none
  std::string trace;             // see parse_trace(); empty: none
};

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

}  // namespace saturate
