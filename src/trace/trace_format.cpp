#include "trace/trace_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace saturate {
namespace {

using nlohmann::json;

constexpr int kProcess = 1;
constexpr std::array kCategories = {"phase", "operator", "kernel", "thread"};  // by TrackKind

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Nanoseconds as the format's microseconds, without rounding.
std::string microseconds(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

std::string metadata(const char* what, size_t track, const std::string& arguments) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}})", what, kProcess,
                     track, arguments);
}

struct Lane {
  std::vector<TraceSpan> spans;
  std::vector<int64_t> open_ns;  // ends of the spans open at the present moment, inner ones last
};

// Splits spans into lanes within which they nest.
std::vector<Lane> lanes_of(std::vector<TraceSpan> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  std::vector<Lane> lanes;
  for (auto& span : spans) {
    const auto fits = [&span](Lane& lane) {
      while (!lane.open_ns.empty() && lane.open_ns.back() <= span.begin_ns) lane.open_ns.pop_back();
      return lane.open_ns.empty() || span.end_ns <= lane.open_ns.back();
    };
    auto lane = std::find_if(lanes.begin(), lanes.end(), fits);
    if (lane == lanes.end()) lane = lanes.emplace(lanes.end());
    lane->open_ns.push_back(span.end_ns);
    lane->spans.push_back(std::move(span));
  }
  return lanes;
}

std::string milliseconds_text(int64_t ns) {
  return fmt::format("{:.3f}", double(ns) * 1e-6);
}

std::string percent(int64_t part, int64_t all) {
  return all > 0 ? fmt::format("{:.1f} %", 100 * double(part) / double(all)) : "n/a";
}

// Names of C++ kernels can be very long.
std::string shortened(const std::string& name) {
  constexpr size_t kWidest = 48;
  return name.size() <= kWidest ? name : name.substr(0, kWidest - 3) + "...";
}

std::string phases_text(const Trace& trace) {
  std::map<std::string, int64_t> spent_ns;
  for (const auto& track : trace.tracks)
    for (const auto& span : track.spans)
      if (track.kind == TrackKind::kPhases && !span.name.starts_with("step "))
        spent_ns[span.name] += span.end_ns - span.begin_ns;
  std::vector<std::pair<std::string, int64_t>> phases(spent_ns.begin(), spent_ns.end());
  std::ranges::stable_sort(phases, std::greater(), [](const auto& each) { return each.second; });
  std::string text = fmt::format("\n{:<48}{:>12}{:>10}\n", "phase", "ms", "share");
  for (const auto& [name, ns] : phases)
    text += fmt::format("{:<48}{:>12}{:>10}\n", name, milliseconds_text(ns),
                        percent(ns, trace.wall_ns));
  return text + fmt::format("{:<48}{:>12}\n", "wall", milliseconds_text(trace.wall_ns));
}

// Busy time of a window, and its gaps.
struct Occupation {
  int64_t busy_ns = 0, longest_gap_ns = 0;
  int gaps = 0;
};

// The spans in the window [0, wall) may overlap.
Occupation occupation_of(std::vector<TraceSpan> spans, int64_t wall_ns) {
  std::ranges::sort(spans, {}, &TraceSpan::begin_ns);
  Occupation found;
  int64_t end_ns = 0;  // end of the spans so far
  const auto gap = [&](int64_t until_ns) {
    if (until_ns <= end_ns) return;
    ++found.gaps;
    found.longest_gap_ns = std::max(found.longest_gap_ns, until_ns - end_ns);
    end_ns = until_ns;
  };
  for (const TraceSpan& span : spans) {
    gap(std::min(span.begin_ns, wall_ns));
    const int64_t until_ns = std::min(span.end_ns, wall_ns);
    if (until_ns <= end_ns) continue;
    found.busy_ns += until_ns - end_ns;
    end_ns = until_ns;
  }
  gap(wall_ns);
  return found;
}

// The tracks of each stream, which nest_spans() may have split, and all streams together.
std::string streams_text(const Trace& trace) {
  std::map<std::string, std::vector<TraceSpan>> streams;
  std::vector<TraceSpan> all;
  for (const auto& track : trace.tracks) {
    if (track.kind != TrackKind::kDevice) continue;
    auto& spans = streams[track.name.substr(0, track.name.find(" ("))];
    spans.insert(spans.end(), track.spans.begin(), track.spans.end());
    all.insert(all.end(), track.spans.begin(), track.spans.end());
  }
  if (streams.empty()) return "";
  std::string text = fmt::format("\n{:<48}{:>12}{:>10}{:>8}{:>16}\n", "stream", "busy, ms", "share",
                                 "gaps", "longest, ms");
  const auto add = [&](const std::string& name, std::vector<TraceSpan> spans) {
    const Occupation found = occupation_of(std::move(spans), trace.wall_ns);
    text += fmt::format("{:<48}{:>12}{:>10}{:>8}{:>16}\n", shortened(name),
                        milliseconds_text(found.busy_ns), percent(found.busy_ns, trace.wall_ns),
                        found.gaps, milliseconds_text(found.longest_gap_ns));
  };
  for (auto& [name, spans] : streams) add(name, std::move(spans));
  add("all streams", std::move(all));
  return text;
}

std::string copies_text(const std::optional<CopyFigures>& copies) {
  if (!copies || copies->count == 0 || copies->ns == 0) return "\ncopies to the device: n/a\n";
  return fmt::format("\ncopies to the device: {} of {:.3f} MB in {} ms, {:.2f} GB/s\n",
                     copies->count, double(copies->bytes) * 1e-6, milliseconds_text(copies->ns),
                     double(copies->bytes) / double(copies->ns));
}

}  // namespace

void nest_spans(std::vector<TraceTrack>& tracks) {
  std::vector<TraceTrack> nested;
  for (auto& track : tracks) {
    int number = 0;
    for (auto& lane : lanes_of(std::move(track.spans)))
      nested.push_back({++number == 1 ? track.name : fmt::format("{} ({})", track.name, number),
                        track.kind, std::move(lane.spans)});
  }
  tracks = std::move(nested);
}

std::string trace_json(const Trace& trace) {
  std::string text = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"first_step\":{},\"last_step\":{},"
      "\"wall_us\":{}}},\"traceEvents\":[\n",
      trace.first_step, trace.last_step, microseconds(trace.wall_ns));
  text += metadata("process_name", 0, "\"name\":\"saturate\"");
  for (size_t i = 0; i < trace.tracks.size(); ++i) {
    const TraceTrack& track = trace.tracks[i];
    text += ",\n" + metadata("thread_name", i + 1, "\"name\":" + quoted(track.name));
    text += ",\n" + metadata("thread_sort_index", i + 1, fmt::format("\"sort_index\":{}", i + 1));
    for (const auto& span : track.spans)
      text += fmt::format(
          ",\n{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{}}"
          "}",
          quoted(span.name), kCategories[size_t(track.kind)], kProcess, i + 1,
          microseconds(span.begin_ns), microseconds(span.end_ns - span.begin_ns));
  }
  return text + "\n]}\n";
}

std::vector<OperatorRow> operator_table(const std::vector<TraceTrack>& tracks) {
  std::map<std::pair<bool, std::string>, OperatorRow> rows;
  for (const auto& track : tracks) {
    const bool on_device = track.kind == TrackKind::kDevice;
    if (!on_device && track.kind != TrackKind::kOperators) continue;
    std::vector<std::pair<int64_t, OperatorRow*>> open;  // open ends, inner ones last
    for (const auto& span : track.spans) {
      while (!open.empty() && open.back().first <= span.begin_ns) open.pop_back();
      const int64_t ns = span.end_ns - span.begin_ns;
      OperatorRow& row =
          rows.try_emplace({on_device, span.name}, span.name, on_device, 0, 0, 0).first->second;
      ++row.calls;
      row.total_ns += ns;
      row.self_ns += ns;
      if (!open.empty()) open.back().second->self_ns -= ns;
      open.emplace_back(span.end_ns, &row);
    }
  }
  std::vector<OperatorRow> table;
  for (auto& [key, row] : rows) table.push_back(std::move(row));
  std::ranges::stable_sort(table, std::greater(), &OperatorRow::self_ns);
  return table;
}

std::string format_trace(const Trace& trace, const std::vector<OperatorRow>& rows, size_t most) {
  std::string text =
      fmt::format("steps {} to {}\n\n{:<50}{:>8}{:>12}{:>10}{:>12}\n", trace.first_step,
                  trace.last_step, "operator", "calls", "self, ms", "share", "total, ms");
  int64_t host_ns = 0, device_ns = 0;
  for (const auto& row : rows) (row.on_device ? device_ns : host_ns) += row.self_ns;
  for (size_t i = 0; i < rows.size() && (most == 0 || i < most); ++i) {
    const OperatorRow& row = rows[i];
    text += fmt::format("{}{:<48}{:>8}{:>12}{:>10}{:>12}\n", row.on_device ? "* " : "  ",
                        shortened(row.name), row.calls, milliseconds_text(row.self_ns),
                        percent(row.self_ns, row.on_device ? device_ns : host_ns),
                        milliseconds_text(row.total_ns));
  }
  if (most > 0 && rows.size() > most) text += fmt::format("  and {} more\n", rows.size() - most);
  if (device_ns > 0) text += "* on the device; shares are of the device's time\n";
  return text + phases_text(trace) + streams_text(trace) + copies_text(trace.copies);
}

}  // namespace saturate
