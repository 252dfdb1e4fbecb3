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
  std::map<uint64_t, TraceTrack> threads;
  std::map<int64_t, TraceTrack> streams;
  for (const auto& event : result.events()) {
    if (event.isHiddenEvent() || event.isAsync() || event.endNs() < event.startNs()) continue;
    const TraceSpan span{event.name(), int64_t(event.startNs()) - origin_unix_ns,
                         int64_t(event.endNs()) - origin_unix_ns};
    if (event.deviceType() == c10::DeviceType::CPU) {
      const uint64_t thread = event.startThreadId();
      const std::string name =
          thread == own_thread ? "operators" : fmt::format("operators, thread {}", thread);
      TraceTrack& track =
          threads.try_emplace(thread, name, TrackKind::kOperators, std::vector<TraceSpan>())
              .first->second;
      track.spans.push_back(span);
      continue;
    }
    const int64_t stream = event.deviceResourceId();
    streams
        .try_emplace(stream, fmt::format("device, stream {}", stream), TrackKind::kDevice,
                     std::vector<TraceSpan>())
        .first->second.spans.push_back(span);
    if (trace.copies && span.name.starts_with("Memcpy HtoD")) {
      ++trace.copies->count;
      trace.copies->bytes += bytes_of(event.metadataJson());
      trace.copies->ns += span.end_ns - span.begin_ns;
    }
  }
  for (auto& [thread, track] : threads) trace.tracks.push_back(std::move(track));
  for (auto& [stream, track] : streams) trace.tracks.push_back(std::move(track));
}

void add_threads(std::vector<SpanTrack> recorded, int64_t origin_ns, Trace& trace) {
  for (auto& track : recorded) {
    TraceTrack shown{track.thread, TrackKind::kThread, {}};
    for (const auto& span : track.spans)
      shown.spans.push_back({span.name, span.begin_ns - origin_ns, span.end_ns - origin_ns});
    if (track.dropped > 0) shown.name += fmt::format(" ({} spans left out)", track.dropped);
    trace.tracks.push_back(std::move(shown));
  }
}

std::string window_text(const TraceWindow& window) {
  return fmt::format("steps {} to {}", window.first, window.last);
}

}  // namespace

struct Tracer::State : PhaseObserver {
  State(Env& env_in, Ledger& ledger_in, const TraceWindow& window_in, const at::Device& device_in,
        std::string folder_in);
  ~State() override;

  std::optional<Note> between_steps(int64_t done);
  std::optional<Note> finish(int64_t done);
  void charged(Phase phase, Phase next, int64_t charged_from_ns, int64_t end_ns) override;
  std::optional<Note> begin(int64_t done);
  Note end(int64_t done);
  Trace collect(int64_t done);
  Note write(const Trace& trace);

  Env& env;
  Ledger& ledger;
  const TraceWindow window;
  const at::Device device;
  const std::string folder;
  const bool marks;  // phase ranges, for NVTX
  bool is_open = false, is_over = false;
  int64_t begin_ns = 0, step_ns = 0;  // start of the window, and of the present step
  int64_t unix_offset_ns = 0;         // from the ledger's clock to Unix time
  int64_t begun_after = 0;            // steps
  TraceTrack phases;
};

Tracer::State::State(Env& env_in, Ledger& ledger_in, const TraceWindow& window_in,
                     const at::Device& device_in, std::string folder_in)
    : env(env_in),
      ledger(ledger_in),
      window(window_in),
      device(device_in),
      folder(std::move(folder_in)),
      marks(device.is_cuda() && has_cuda_capture()) {
  if (window.kind == TraceKind::kNsight && !marks)
    fail(ErrorKind::kUsage,
         device.is_cuda() ? "this build cannot start a GPU's profiler" : "the run is not on a GPU",
         "watch.trace", "Set watch.trace=steps:FIRST-LAST, which needs none");
  is_over = window.kind == TraceKind::kNone;
  // Kineto would print messages about every missing device to stderr. It reads this when first
  // used.
  if (!is_over) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  if (marks) begin_cuda_range(phase_name(Phase::kOther).data());
  if (marks) ledger.observe(this);
}

Tracer::State::~State() {
  ledger.observe(nullptr);
  if (marks) end_cuda_range();
  if (!is_open) return;
  if (window.kind == TraceKind::kNsight) {
    stop_cuda_profiler();
  } else {
    kineto::disableProfiler();
    stop_spans();
  }
}

void Tracer::State::charged(Phase phase, Phase next, int64_t charged_from_ns, int64_t end_ns) {
  if (marks && next != phase) {
    end_cuda_range();
    begin_cuda_range(phase_name(next).data());
  }
  if (!is_open || end_ns <= begin_ns) return;
  const TraceSpan span{std::string(phase_name(phase)),
                       std::max(charged_from_ns, begin_ns) - begin_ns, end_ns - begin_ns};
  auto& spans = phases.spans;
  const bool goes_on =
      !spans.empty() && spans.back().name == span.name && spans.back().end_ns == span.begin_ns;
  if (goes_on)
    spans.back().end_ns = span.end_ns;
  else
    spans.push_back(span);
}

std::optional<Tracer::Note> Tracer::State::begin(int64_t done) {
  begun_after = done;
  if (window.kind == TraceKind::kNsight) {
    is_open = true;
    start_cuda_profiler();
    return std::nullopt;
  }
  if (!start_spans()) {
    is_over = true;
    return Note{"watch.trace: nothing was traced, as another run of this process is traced", true};
  }
  start_kineto(device);
  ledger.times();  // excludes earlier time from the window
  const int64_t before_ns = env.now_ns(), unix_ns = unix_time_ns(env);
  begin_ns = step_ns = env.now_ns();
  unix_offset_ns = unix_ns - before_ns - (begin_ns - before_ns) / 2;
  phases = {"phases", TrackKind::kPhases, {}};
  is_open = true;
  ledger.observe(this);
  return std::nullopt;
}

Trace Tracer::State::collect(int64_t done) {
  ledger.times();  // charges the present phase up to now
  Trace trace;
  trace.first_step = begun_after + 1;
  trace.last_step = done;
  trace.wall_ns = env.now_ns() - begin_ns;
  if (device.is_cuda()) trace.copies.emplace();
  is_open = false;
  if (!marks) ledger.observe(nullptr);
  const auto result = kineto::disableProfiler();
  trace.tracks.push_back(std::move(phases));
  add_operators(*result, begin_ns + unix_offset_ns, trace);
  add_threads(stop_spans(), begin_ns, trace);
  nest_spans(trace.tracks);
  return trace;
}

Tracer::Note Tracer::State::write(const Trace& trace) {
  const auto rows = operator_table(trace.tracks);
  const std::string path = folder + "/trace.json";
  std::string lost = fmt::format("the trace of steps {} to {}", trace.first_step, trace.last_step);
  try {
    write_atomically(env, path, trace_json(trace));
    lost += ", but for " + path + ",";
    write_atomically(env, folder + "/trace.txt", format_trace(trace, rows, 0));
  } catch (const Error& error) {
    return {fmt::format("{} is lost, the run goes on: {}", lost, error.what()), true};
  }
  return {fmt::format("traced {}: open it in ui.perfetto.dev\n{}", path,
                      format_trace(trace, rows, kPrintedRows)),
          false};
}

Tracer::Note Tracer::State::end(int64_t done) {
  is_over = true;
  if (window.kind == TraceKind::kNsight) {
    is_open = false;
    stop_cuda_profiler();
    return {fmt::format("the profiler's window was steps {} to {}", begun_after + 1, done), false};
  }
  return write(collect(done));
}

std::optional<Tracer::Note> Tracer::State::between_steps(int64_t done) {
  if (is_over) return std::nullopt;
  if (is_open && window.kind == TraceKind::kSteps) {
    ledger.times();
    const int64_t now_ns = phases.spans.empty() ? step_ns : begin_ns + phases.spans.back().end_ns;
    phases.spans.push_back({fmt::format("step {}", done), step_ns - begin_ns, now_ns - begin_ns});
    step_ns = now_ns;
  }
  if (is_open && done >= window.last) return end(done);
  if (!is_open && done + 1 >= window.first && done < window.last) return begin(done);
  return std::nullopt;
}

std::optional<Tracer::Note> Tracer::State::finish(int64_t done) {
  if (is_over) return std::nullopt;
  if (is_open && done > begun_after) return end(done);
  is_over = true;  // closes the window if its last step never came
  return Note{fmt::format("watch.trace: nothing was traced, no step of this process lay in {} (the "
                          "last one was {})",
                          window_text(window), done),
              true};
}

Tracer::Tracer(Env& env, Ledger& ledger, const TraceWindow& window, const at::Device& device,
               std::string folder)
    : state_(std::make_unique<State>(env, ledger, window, device, std::move(folder))) {}
Tracer::~Tracer() = default;

std::optional<Tracer::Note> Tracer::between_steps(int64_t done) {
  return state_->between_steps(done);
}

std::optional<Tracer::Note> Tracer::finish(int64_t done) {
  return state_->finish(done);
}

}  // namespace saturate
