#include "trace/tracer.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "base/spans.h"
#include "base/wall_clock.h"
#include "saturate/data/error.h"
#include "trace/cuda_calls.h"
#include "trace/trace_format.h"

namespace saturate {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr size_t kPrintedRows = 12;

void start_kineto(const at::Device& device) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

// The number after `"bytes": ` in Kineto's description of a copy.
int64_t bytes_of(const std::string& metadata) {
  constexpr std::string_view kKey = "\"bytes\":";
  const auto at = metadata.find(kKey);
  return at == std::string::npos ? 0
                                 : std::strtoll(metadata.c_str() + at + kKey.size(), nullptr, 10);
}

// Adds Kineto's tracks: one for each thread that called operators, one for each stream.
void add_operators(const kineto::ProfilerResult& result, int64_t origin_unix_ns, Trace& trace) {
  const uint64_t own_thread = at::RecordFunction::currentThreadId();
  std::map<std::pair<bool, int64_t>, TraceTrack> tracks;  // by stream or thread: threads first
  for (const auto& event : result.events()) {
    if (event.isHiddenEvent() || event.isAsync() || event.endNs() < event.startNs()) continue;
    const TraceSpan span{event.name(), int64_t(event.startNs()) - origin_unix_ns,
                         int64_t(event.endNs()) - origin_unix_ns};
    const bool on_device = event.deviceType() != c10::DeviceType::CPU;
    const uint64_t thread = event.startThreadId();
    const int64_t stream = event.deviceResourceId();
    TraceTrack& track = tracks[{on_device, on_device ? stream : int64_t(thread)}];
    if (track.name.empty()) {
      track.kind = on_device ? TrackKind::kDevice : TrackKind::kOperators;
      track.name = on_device              ? fmt::format("device, stream {}", stream)
                   : thread == own_thread ? "operators"
                                          : fmt::format("operators, thread {}", thread);
    }
    track.spans.push_back(span);
    if (on_device && trace.copies && span.name.starts_with("Memcpy HtoD")) {
      ++trace.copies->count;
      trace.copies->bytes += bytes_of(event.metadataJson());
      trace.copies->ns += span.end_ns - span.begin_ns;
    }
  }
  for (auto& [key, track] : tracks) trace.tracks.push_back(std::move(track));
}

void add_threads(std::vector<SpanTrack> recorded, int64_t origin_ns, Trace& trace) {
  for (auto& track : recorded) {
    TraceTrack shown{track.thread, TrackKind::kThread, {}};
    for (const auto& span : track.spans)
      shown.spans.push_back({span.name, span.begin_ns - origin_ns, span.end_ns - origin_ns});
    if (track.dropped > 0) shown.name += fmt::format(" ({} spans dropped)", track.dropped);
    trace.tracks.push_back(std::move(shown));
  }
}

}  // namespace

Tracer::Tracer(Env& env, Ledger& ledger, const TraceWindow& window, const at::Device& device,
               std::string folder)
    : env_(env),
      ledger_(ledger),
      window_(window),
      device_(device),
      folder_(std::move(folder)),
      marks_(device.is_cuda() && is_cuda_build()),
      is_over_(window.kind == TraceKind::kNone) {
  if (window.kind == TraceKind::kNsight && !marks_)
    fail(ErrorKind::kUsage,
         device.is_cuda() ? "this build cannot start a GPU's profiler" : "the run is not on a GPU",
         "watch.trace", "Set watch.trace=steps:FIRST-LAST, which needs none");
  // Kineto would print messages about every missing device to stderr. It reads this when first
  // used.
  if (!is_over_) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  if (marks_) begin_cuda_range(phase_name(Phase::kOther).data());
  if (marks_) ledger.observe(this);
}

Tracer::~Tracer() {
  ledger_.observe(nullptr);
  if (marks_) end_cuda_range();
  if (!is_open_) return;
  if (window_.kind == TraceKind::kNsight) {
    stop_cuda_profiler();
  } else {
    kineto::disableProfiler();
    stop_spans();
  }
}

void Tracer::charged(Phase phase, Phase next, int64_t charged_from_ns, int64_t end_ns) {
  if (marks_ && next != phase) {
    end_cuda_range();
    begin_cuda_range(phase_name(next).data());
  }
  if (!is_open_ || end_ns <= begin_ns_) return;
  const TraceSpan span{std::string(phase_name(phase)),
                       std::max(charged_from_ns, begin_ns_) - begin_ns_, end_ns - begin_ns_};
  auto& spans = phases_.spans;
  const bool goes_on =
      !spans.empty() && spans.back().name == span.name && spans.back().end_ns == span.begin_ns;
  if (goes_on)
    spans.back().end_ns = span.end_ns;
  else
    spans.push_back(span);
}

std::optional<Tracer::Note> Tracer::begin(int64_t done) {
  begun_after_ = done;
  if (window_.kind == TraceKind::kNsight) {
    is_open_ = true;
    start_cuda_profiler();
    return std::nullopt;
  }
  if (!start_spans()) {
    is_over_ = true;
    return Note{"watch.trace: nothing was traced, as another run of this process is traced", true};
  }
  start_kineto(device_);
  ledger_.times();  // excludes earlier time from the window
  const int64_t before_ns = env_.now_ns(), unix_ns = unix_time_ns(env_);
  begin_ns_ = step_ns_ = env_.now_ns();
  unix_offset_ns_ = unix_ns - before_ns - (begin_ns_ - before_ns) / 2;
  phases_ = {"phases", TrackKind::kPhases, {}};
  is_open_ = true;
  ledger_.observe(this);
  return std::nullopt;
}

Trace Tracer::collect(int64_t done) {
  ledger_.times();  // charges the present phase up to now
  Trace trace;
  trace.first_step = begun_after_ + 1;
  trace.last_step = done;
  trace.wall_ns = env_.now_ns() - begin_ns_;
  if (device_.is_cuda()) trace.copies.emplace();
  is_open_ = false;
  if (!marks_) ledger_.observe(nullptr);
  const auto result = kineto::disableProfiler();
  trace.tracks.push_back(std::move(phases_));
  add_operators(*result, begin_ns_ + unix_offset_ns_, trace);
  add_threads(stop_spans(), begin_ns_, trace);
  nest_spans(trace.tracks);
  return trace;
}

Tracer::Note Tracer::write(const Trace& trace) {
  const auto rows = operator_table(trace.tracks);
  const std::string path = folder_ + "/trace.json";
  std::string lost = fmt::format("the trace of steps {} to {}", trace.first_step, trace.last_step);
  try {
    write_atomically(env_, path, trace_json(trace));
    lost += ", but for " + path + ",";
    write_atomically(env_, folder_ + "/trace.txt", format_trace(trace, rows, 0));
  } catch (const Error& error) {
    return {fmt::format("{} is lost, the run continues: {}", lost, error.what()), true};
  }
  return {fmt::format("traced {}: open it in ui.perfetto.dev\n{}", path,
                      format_trace(trace, rows, kPrintedRows)),
          false};
}

Tracer::Note Tracer::end(int64_t done) {
  is_over_ = true;
  if (window_.kind == TraceKind::kNsight) {
    is_open_ = false;
    stop_cuda_profiler();
    return {fmt::format("the profiler's window was steps {} to {}", begun_after_ + 1, done), false};
  }
  return write(collect(done));
}

std::optional<Tracer::Note> Tracer::between_steps(int64_t done) {
  if (is_over_) return std::nullopt;
  if (is_open_ && window_.kind == TraceKind::kSteps) {
    ledger_.times();
    const int64_t now_ns =
        phases_.spans.empty() ? step_ns_ : begin_ns_ + phases_.spans.back().end_ns;
    phases_.spans.push_back(
        {fmt::format("step {}", done), step_ns_ - begin_ns_, now_ns - begin_ns_});
    step_ns_ = now_ns;
  }
  if (is_open_ && done >= window_.last) return end(done);
  if (!is_open_ && done + 1 >= window_.first && done < window_.last) return begin(done);
  return std::nullopt;
}

std::optional<Tracer::Note> Tracer::finish(int64_t done) {
  if (is_over_) return std::nullopt;
  if (is_open_ && done > begun_after_) return end(done);
  is_over_ = true;  // closes the window if its last step never came
  return Note{fmt::format("watch.trace: nothing was traced, no step of this process lay in steps "
                          "{} to {} (the last one was {})",
                          window_.first, window_.last, done),
              true};
}

}  // namespace saturate
