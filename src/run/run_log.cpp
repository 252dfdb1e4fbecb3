#include "run/run_log.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>

#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

void set_metrics(MetricsRecord& record, const Metrics& metrics) {
  record.loss = metrics.loss;
  record.accuracy = metrics.accuracy;
  record.accuracy5 = metrics.accuracy5;
  record.mean_iou = metrics.mean_iou();
}

std::string percent(double share) {
  return fmt::format("{:.2f}%", share * 100);
}

// Wall time without evaluation and checkpoints, which images/s leaves out.
double training_s(const PhaseTimes& times) {
  return times.total() - times[Phase::kEvaluation] - times[Phase::kCheckpoint];
}

// "acc 91.20%", and the overlap of segmentation.
std::string accuracy_of(const Metrics& metrics) {
  const auto iou = metrics.mean_iou();
  return "acc " + percent(metrics.accuracy) + (iou ? fmt::format("  iou {:.4f}", *iou) : "");
}

std::string evaluation_line(const char* title, const Metrics& metrics) {
  return fmt::format("          {}  loss {}  {}{}  on {} images", title, format_loss(metrics.loss),
                     accuracy_of(metrics),
                     metrics.accuracy5 ? "  acc5 " + percent(*metrics.accuracy5) : "",
                     metrics.samples);
}

}  // namespace

int64_t memory_peak_bytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) * 1024;
}

RunLog::RunLog(Env& env, const Recipe& recipe, const Plan& plan, Ledger& ledger,
               TelemetryLog* telemetry, StreamClock* streams)
    : plan_(plan),
      epochs_(recipe.train.epochs),
      ledger_(ledger),
      telemetry_(telemetry),
      streams_(streams),
      progress_(env, "train", "steps", plan.total_steps,
                recipe.watch.progress && plan.writes ? plan.style : Progress::Style::kSilent) {
  if (plan.writes) {
    metrics_.emplace(env, plan.folder + "/metrics.jsonl", plan.begin.step);
    sinks_ = open_sinks(env, recipe, plan.folder, plan.begin.step);
  }
  progress_.start_at(plan.begin.step);
  ledger_.take_memory_peaks();  // of the run, not of what came before it
}

double RunLog::time_s() {
  return plan_.begin.time_s + ledger_.times().total();
}

MetricsRecord RunLog::record(const std::string& kind, const RunPosition& position) {
  MetricsRecord record;
  record.kind = kind;
  record.step = position.step;
  record.epoch = double(position.step) / double(plan_.epoch_steps);
  record.samples = position.samples;
  record.time_s = time_s();
  record.memory_peak_bytes = memory_peak_bytes();
  return record;
}

// A run needs its metrics.jsonl; it goes on without a sink that fails.
void RunLog::write(const MetricsRecord& record) {
  if (metrics_) metrics_->write(record);
  to_sinks([&](MetricsSink& sink) { sink.write(record); });
}

void RunLog::images(int64_t step, const std::vector<TaggedImage>& images) {
  to_sinks([&](MetricsSink& sink) { sink.write_images(step, images); });
}

void RunLog::histograms(int64_t step, const std::vector<TaggedHistogram>& histograms) {
  to_sinks([&](MetricsSink& sink) { sink.write_histograms(step, histograms); });
}

void RunLog::to_sinks(const std::function<void(MetricsSink&)>& tell) {
  std::erase_if(sinks_, [&](const auto& sink) {
    try {
      tell(*sink);
      return false;
    } catch (const Error& error) {
      warn(std::string(error.what()) + "; the run goes on without it");
      return true;
    }
  });
}

void RunLog::collect_peaks() {
  const PhaseBytes peaks = ledger_.take_memory_peaks();
  for (PhaseBytes* over : {&step_peaks_, &epoch_peaks_, &run_peaks_}) over->merge(peaks);
}

const PhaseBytes& RunLog::tensor_peaks() {
  collect_peaks();
  return run_peaks_;
}

std::optional<PhaseTimes> RunLog::device_since(std::optional<PhaseTimes>& mark,
                                               const PhaseTimes& host) {
  const auto now = ledger_.device_times();
  const auto before = std::exchange(mark, now);
  if (!now || !before) return now;
  PhaseTimes since = *now - *before;
  for (size_t phase = 0; phase < kPhaseCount; ++phase)
    if (host.seconds[phase] == 0) since.seconds[phase] = 0;
  return since;
}

void RunLog::begin_epoch(const RunPosition& position) {
  collect_peaks();
  epoch_samples_ = position.samples;
  epoch_peaks_ = step_peaks_ = {};
  epoch_mark_ = step_mark_ = ledger_.times();
  device_epoch_mark_ = device_step_mark_ = ledger_.device_times();
}

void RunLog::steps(const RunPosition& position, const Metrics& part, double lr) {
  MetricsRecord line = record("step", position);
  set_metrics(line, part);
  line.lr = lr;
  const PhaseTimes now = ledger_.times();
  line.phases = now - step_mark_;
  line.images_per_s = double(part.samples) / training_s(*line.phases);
  step_mark_ = now;
  if (telemetry_)
    line.telemetry = telemetry_->take(part.samples / plan_.processes, training_s(*line.phases));
  if (streams_) {
    const auto times = streams_->times();
    line.streams = time_between(std::exchange(stream_mark_, times), times);
  }
  line.device_phases = device_since(device_step_mark_, *line.phases);
  collect_peaks();
  line.tensor_peak_bytes = std::exchange(step_peaks_, {});
  write(line);
  details_ = fmt::format("epoch {:.1f}/{:g}  loss {}  {}  {:.0f} img/s", line.epoch, epochs_,
                         format_loss(part.loss), accuracy_of(part), *line.images_per_s);
}

void RunLog::epoch(const RunPosition& position, const Metrics& metrics, double lr) {
  MetricsRecord line = record("epoch", position);
  set_metrics(line, metrics);
  line.lr = lr;
  line.phases = ledger_.times() - epoch_mark_;
  line.device_phases = device_since(device_epoch_mark_, *line.phases);
  collect_peaks();
  line.tensor_peak_bytes = epoch_peaks_;
  // A resumed epoch's metrics include images that an earlier process trained on.
  line.images_per_s = double(position.samples - epoch_samples_) / training_s(*line.phases);
  write(line);
  note(fmt::format("epoch {:.3g}/{:g}  loss {}  {}  {:.0f} images/s  {}", line.epoch, epochs_,
                   format_loss(metrics.loss), accuracy_of(metrics), *line.images_per_s,
                   format_duration(line.phases->total())));
}

void RunLog::evaluation(const RunPosition& position, const Evaluation& found, double seconds) {
  MetricsRecord line = record("eval", position);
  set_metrics(line, found.metrics);
  const double evaluations = found.plain ? 2 : 1;
  line.images_per_s = evaluations * double(found.metrics.samples) / seconds;
  if (found.plain) {
    line.plain_loss = found.plain->loss;
    line.plain_accuracy = found.plain->accuracy;
  }
  write(line);
  note(evaluation_line("eval", found.metrics));
  if (found.plain) note(evaluation_line("     of the weights without averaging:", *found.plain));
}

void RunLog::end(const RunPosition& position, const std::optional<Evaluation>& last) {
  MetricsRecord line = record("end", position);
  if (last) set_metrics(line, last->metrics);
  line.phases = ledger_.times();
  line.device_phases = ledger_.device_times();
  line.tensor_peak_bytes = tensor_peaks();
  if (telemetry_) line.telemetry = telemetry_->whole();
  if (streams_) line.streams = streams_->times();
  write(line);
}

void RunLog::show(const RunPosition& position, const std::string& details) {
  progress_.update(position.step, details);
}

void RunLog::warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t& warned) {
  for (; warned < skipped.size(); ++warned)
    warn(fmt::format("skipped {}: {}", skipped[warned].name, skipped[warned].reason));
}

}  // namespace saturate
