#include "run/run_log.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>

#include "base/printable.h"

namespace saturate {
namespace {

void set_metrics(MetricsRecord& record, const Metrics& metrics) {
  if (metrics.samples > 0) record.loss = metrics.loss;
  for (const MetricValue& each : metrics.values) {
    if (each.name == "accuracy")
      record.accuracy = each.value;
    else if (each.name == "accuracy5")
      record.accuracy5 = each.value;
    else if (each.name == "iou")
      record.mean_iou = each.value;
    else
      record.values.push_back(each);
  }
}

}  // namespace

int64_t memory_peak_bytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) * 1024;
}

RunLog::RunLog(Env& env, const Recipe& recipe, const Plan& plan, Ledger& ledger,
               StreamClock* streams)
    : env_(env),
      records_path_(plan.writes ? plan.folder + "/metrics.jsonl" : ""),
      begin_step_(plan.begin.step),
      epochs_(recipe.train.epochs),
      has_images_(plan.has_images),
      epoch_steps_(plan.epoch_steps),
      begin_s_(plan.begin.time_s),
      ledger_(ledger),
      streams_(streams),
      progress_(env, "train", "steps", plan.total_steps,
                recipe.watch.progress && plan.writes ? plan.style : Progress::Style::kSilent),
      observers_(progress_, plan.folder, plan.rank) {
  for (const ObserverList::Entry& entry : plan.observers) observers_.add(entry);
  observers_.reserve(plan.metrics);
  if (plan.writes) sinks_ = open_sinks(env, recipe, plan.folder, plan.begin.step, plan.metrics);
}

void RunLog::begin(std::vector<TextFile> files) {
  if (!records_path_.empty()) {
    const bool has_records = env_.exists(records_path_);
    const uint64_t kept = has_records ? end_of_records(env_, records_path_, begin_step_) : 0;
    if (has_records) env_.open_appendable(records_path_)->close();  // fails before others change
    replace_together(env_, files);
    // Last: if the run is killed before this, its next resume cuts it.
    if (has_records) truncate_file(records_path_, kept);
    observers_.add({std::make_shared<MetricsWriter>(env_, records_path_)});
  }
  for (const auto& sink : sinks_) {
    sink->begin(observers_);
    observers_.add({sink});
  }
  observers_.add({make_run_progress(progress_, epochs_, has_images_)});
  progress_.start_at(begin_step_);
  ledger_.take_memory_peaks();  // of the run, not of what came before it
}

double RunLog::time_s() {
  return begin_s_ + ledger_.times().total();
}

MetricsRecord RunLog::record(const std::string& kind, const RunPosition& position) {
  MetricsRecord record;
  record.kind = kind;
  record.step = position.step;
  record.epoch = double(position.epoch) + double(position.batch) / double(epoch_steps_);
  record.samples = position.samples;
  record.time_s = time_s();
  record.phases_so_far = ledger_.times();
  record.memory_peak_bytes = memory_peak_bytes();
  return record;
}

void RunLog::images(int64_t step, const std::vector<TaggedImage>& images) {
  for (const auto& sink : sinks_) sink->images(step, images, observers_);
}

void RunLog::histograms(int64_t step, const std::vector<TaggedHistogram>& histograms) {
  for (const auto& sink : sinks_) sink->histograms(step, histograms, observers_);
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
  line.images = part.samples;
  const PhaseTimes now = ledger_.times();
  line.phases = now - step_mark_;
  line.images_per_s = double(part.samples) / training_s(*line.phases);
  step_mark_ = now;
  if (streams_) {
    const auto times = streams_->times();
    line.streams = time_between(std::exchange(stream_mark_, times), times);
  }
  line.device_phases = device_since(device_step_mark_, *line.phases);
  collect_peaks();
  line.tensor_peak_bytes = std::exchange(step_peaks_, {});
  observers_.on_steps(std::move(line));
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
  observers_.after_epoch({position, metrics}, std::move(line));
}

void RunLog::evaluation(const EvaluationEvent& event, double seconds) {
  MetricsRecord line = record("eval", event.position);
  const auto& [step, metrics, plain] = event.found;
  set_metrics(line, metrics);
  line.images_per_s = (plain ? 2 : 1) * double(metrics.samples) / seconds;
  if (plain) {
    line.plain_loss = plain->loss;
    line.plain_accuracy = plain->value("accuracy");
    const auto& values = plain->values;
    if (!line.plain_accuracy && !values.empty())
      line.values.push_back({"plain_" + values.front().name, values.front().value});
  }
  observers_.after_evaluation(event, std::move(line));
}

void RunLog::end(const EndEvent& event) {
  MetricsRecord line = record("end", event.position);
  if (event.last) set_metrics(line, event.last->metrics);
  line.phases = ledger_.times();
  line.device_phases = ledger_.device_times();
  line.tensor_peak_bytes = tensor_peaks();
  if (streams_) line.streams = streams_->times();
  observers_.at_end(event, std::move(line));
}

void RunLog::show(const RunPosition& position, const std::string& details) {
  progress_.update(position.step, details);
}

void RunLog::warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t& warned) {
  for (; warned < skipped.size(); ++warned)
    warn(fmt::format("skipped {}: {}", skipped[warned].name, skipped[warned].reason));
}

}  // namespace saturate
