// A trace as data: tracks of spans, their file in Chrome's format, and the table of operators.
//
// Format: "Trace Event Format" of the Chromium project, JSON object form, complete events ("ph":
// "X") with times in microseconds; Perfetto reads it too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate {

struct TraceSpan {
  std::string name;
  int64_t begin_ns, end_ns;  // relative to the window's start; may be negative
};

enum class TrackKind { kPhases, kOperators, kDevice, kThread };

struct TraceTrack {
  std::string name;
  TrackKind kind;
  std::vector<TraceSpan> spans;
};

// Bytes copied from host to device, and the time taken.
struct CopyFigures {
  int64_t count = 0, bytes = 0, ns = 0;
};

struct Trace {
  int64_t first_step = 0, last_step = 0;
  int64_t wall_ns = 0;  // of the window
  std::vector<TraceTrack> tracks;
  std::optional<CopyFigures> copies;  // if there is a device to copy to
};

// Sorts each track's spans by their begin, outer ones first, and moves those that partially overlap
// an earlier one to additional tracks, "NAME (2)" and so on: within a track spans nest.
void nest_spans(std::vector<TraceTrack>& tracks);

// REQUIRES: nest_spans() has been called.
std::string trace_json(const Trace& trace);

// All calls of one operator, or of one kernel on a device.
struct OperatorRow {
  std::string name;
  bool on_device;
  int64_t calls, total_ns, self_ns;  // self: without nested operators
};

// Largest self time first. REQUIRES: nest_spans() has been called.
std::vector<OperatorRow> operator_table(const std::vector<TraceTrack>& tracks);

// As aligned text: the first `most` rows (0: all), the phases' share of the window, the copies.
std::string format_trace(const Trace& trace, const std::vector<OperatorRow>& rows, size_t most);

}  // namespace saturate
