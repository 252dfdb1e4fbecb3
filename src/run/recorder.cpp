#include "run/recorder.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <cmath>
#include <span>
#include <sstream>
#include <utility>

#include "record/class_results.h"
#include "record/metrics.h"
#include "run/device_decoding.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/optimizer.h"
#include "trace/flop_counter.h"

namespace saturate {
namespace {

// The loss scale below which a run in fp16 fails: fp16's smallest normal number, 2^-14. From
// precision.initial_scale's default, about thirty overflows in a row lead there.
constexpr double kLeastScale = 1.0 / 16384;
// This many in a row, with a whole epoch among them, fail too: a run may be too short for thirty.
constexpr int64_t kMostOverflows = 8;

std::string where_non_finite(Model& model) {
  const std::string name = first_non_finite(model);
  return name.empty() ? "" : ", nor is " + name;
}

std::string remedy_of_non_finite(const Recipe& recipe, bool is_first) {
  const bool has_numbers =
      recipe.train.task == TaskKind::kRegress || recipe.train.task == TaskKind::kMultilabel;
  if (has_numbers) {
    const std::string look = "`saturate data inspect " + recipe.data.source +
                             "` counts numbers that are not finite, also in the targets";
    return is_first ? look + "; look at the model and its loss too"
                    : "Lower optimizer.lr or lengthen schedule.warmup_epochs; " + look;
  }
  return is_first ? "Look at the samples (of images with augment.mean and augment.std), the model "
                    "and its loss"
                  : "Lower optimizer.lr or lengthen schedule.warmup_epochs";
}

// A rank without samples counts no class.
size_t most_of_all(Group& group, size_t own) {
  const at::Tensor most = at::full({1}, int64_t(own), at::kLong);
  group.max(most);
  return size_t(most.item<int64_t>());
}

// From the sums of all_reduce_metrics().
Metrics metrics_from(std::span<const double> sum, std::span<const MetricName> names,
                     const Task& task, size_t classes) {
  Metrics all;
  const double weight = sum.back();
  all.overflowed = int64_t(sum[sum.size() - 2]);
  all.samples = int64_t(sum[sum.size() - 3]);
  if (all.samples == 0) return all;
  // Without a labelled pixel 0, as in one process; without a sample that did not overflow NaN.
  const auto mean = [&](double value) { return weight == 0 && classes > 0 ? 0 : value / weight; };
  all.loss = mean(sum[0]);
  for (size_t i = 0; i < names.size(); ++i)
    if (sum[2 + 2 * i] > 0) all.set(names[i].name, mean(sum[1 + 2 * i]));
  const auto totals = sum.begin() + 1 + 2 * std::ssize(names);
  all.totals.assign(totals, totals + task.totals());
  const auto pixels = totals + task.totals();
  for (auto at = pixels; at != pixels + 3 * ptrdiff_t(classes); at += 3)
    all.pixels.push_back({int64_t(at[0]), int64_t(at[1]), int64_t(at[2])});
  task.derive(all);
  return all;
}

}  // namespace

// Makes "step" records: after the observers that log in them, before those that show them.
class Recorder::StepRecords : public Observer {
 public:
  explicit StepRecords(Recorder& recorder) : recorder_(recorder) {}
  void after_step(const StepEvent& event, ObserverContext&) override {
    if (!recorder_.run_.recipe.train.late_metrics) recorder_.read_metrics(event.position);
    if (event.record_due) recorder_.record_steps(event.position);
  }

 private:
  Recorder& recorder_;
};

Recorder::Recorder(RunContext& run, RunInput& input, Learner& learner)
    : run_(run), input_(input), learner_(learner), running_(learner.task()) {}
Recorder::~Recorder() = default;

void Recorder::add_observer(std::shared_ptr<Observer> observer) {
  observers_.push_back({std::move(observer)});
}

void Recorder::start(const RunPosition& position, int64_t total_steps) {
  first_step_ = sound_step_ = position.step;
  if (run_.is_first()) {
    prepare_watching(position);
    add_telemetry();
    if (run_.recipe.data.decode_device == DecodeDevice::kCuda)
      add_observer(make_decoding_observer(input_.feeder()));
  }
  for (const auto& observer : run_.options.observers)
    observers_.push_back({observer, /*is_program=*/true});
  add_observer(std::make_shared<StepRecords>(*this));
  std::vector<std::string> metrics;
  for (const MetricName& each : learner_.task().metric_names())
    if (!is_record_key(each.name) && each.name != "iou") metrics.push_back(each.name);
  if (!metrics.empty()) metrics.push_back("plain_" + metrics.front());
  const RunLog::Plan plan{run_.options.out,
                          run_.options.progress,
                          input_.epoch_steps(),
                          total_steps,
                          position,
                          run_.is_first(),
                          run_.shard().rank,
                          std::move(observers_),
                          std::move(metrics),
                          input_.data().tensors().empty()};
  log_ = std::make_unique<RunLog>(run_.env, run_.recipe, plan, run_.ledger, run_.streams.get());
}

void Recorder::add_telemetry() {
  if (run_.recipe.watch.telemetry_hz == 0) return;
  TelemetryLog::Sources sources;
  sources.hz = run_.recipe.watch.telemetry_hz;
  sources.queue = [this] { return double(input_.loader().ready()); };
  if (run_.device.is_cuda()) sources.gpu = run_.device.has_index() ? run_.device.index() : 0;
  sources.precision = run_.recipe.precision.mode;
  sources.processes = run_.shard().world;
  sources.is_only_gpu = other_devices(run_.recipe, run_.device).empty();
  telemetry_ = std::make_shared<TelemetryLog>(run_.env, std::move(sources));
  add_observer(telemetry_);
}

void Recorder::prepare_watching(const RunPosition& position) {
  const WatchOptions& watch = run_.recipe.watch;
  if (!watch.trace.empty() || run_.device.is_cuda())
    tracer_ =
        std::make_unique<Tracer>(run_.env, run_.ledger, parse_trace(watch.trace, "watch.trace"),
                                 run_.device, run_.options.out);
  // Its pages show images with one class, and cross entropy.
  if (watch.samples > 0 && run_.recipe.train.task == TaskKind::kClassify && !run_.options.task &&
      input_.data().tensors().empty()) {
    gallery_ = std::make_shared<SampleGallery>(run_.env, run_.options.out, input_.class_names(),
                                               run_.recipe.augment, watch.samples);
    add_observer(gallery_);
  }
  step_ = position.step;
  if (watch.histograms > 0)
    learner_.observe_gradients([this] {
      if (is_multiple(step_ + 1, run_.recipe.watch.histograms)) write_histograms();
    });
}

// Finishing changes the bytes, which the step still needs.
DeviceBatch Recorder::finished_copy(DeviceBatch batch) {
  if (batch.pixels.defined()) batch.pixels = batch.pixels.clone();
  input_.feeder().finish(batch);
  return batch;
}

void Recorder::watch_step(const DeviceBatch& batch, const RunPosition& position,
                          const std::function<void()>& body) {
  step_ = position.step;
  const bool is_first = !std::exchange(has_stepped_, true);
  if (gallery_ && is_first) {
    Ledger::Scope host(run_.ledger, Phase::kHost);
    const DeviceBatch shown = finished_copy(batch);
    or_warn("samples of training", log_->observers(),
            [&] { log_->images(step_ + 1, gallery_->write_training(step_ + 1, shown)); });
  }
  if (!telemetry_ || !is_first) return body();
  const FlopCounter counter;
  body();
  // The counter does not see the operations of a compiled step, nor of an encoder on another
  // thread: then the number is unknown.
  const bool sees_all = run_.recipe.train.compiled.empty() && !run_.recipe.pipeline.encoder;
  if (counter.flop() > 0 && batch.count() > 0 && sees_all)
    telemetry_->set_flop_per_sample(double(counter.flop()) / double(batch.count()));
}

void Recorder::after_step(const RunPosition& position) {
  log_->observers().after_step(
      {position, learner_.lr(), position.step % run_.recipe.watch.every == 0});
  warn_once();
  trace(position.step, /*ended_run=*/false);
}

void Recorder::warn_once() {
  const TrainStep& step = learner_.step();
  if (step.first_uncompiled() > 0 && !std::exchange(warned_uncompiled_, true))
    log_->warn(fmt::format(
        "a batch (or micro-batch) of {} samples does not fit the compiled step: batches "
        "of this size fall back to the eager step",
        step.first_uncompiled()));
  const GraphedStep* const graphed = learner_.graphed();
  if (graphed && !graphed->failure().empty() && !std::exchange(warned_ungraphed_, true))
    log_->warn("train.graph: using eager steps from here on: " + graphed->failure());
  warn_of_skipped();
}

// The loader names fewer samples than it counts.
void Recorder::warn_of_skipped() {
  const Loader& loader = input_.loader();
  const size_t count = loader.skipped_count();
  if (count != std::exchange(skipped_, count))
    log_->warn_of_skipped(loader.skipped(), warned_train_);
}

void Recorder::read_metrics(const RunPosition& position) {
  const Metrics part = all_reduce_metrics(run_, learner_.task(), running_.read());
  if (part.samples > part.overflowed && !std::isfinite(part.loss)) fail_not_finite(position.step);
  if (part.overflowed > 0 && !std::exchange(warned_overflow_, true))
    log_->warn(
        fmt::format("the loss overflows in fp16 by step {}: such steps are skipped, and the loss "
                    "scale halves",
                    position.step));
  if (part.samples > part.overflowed) sound_step_ = position.step;
  if (learner_.step().loss_scale().value_or(1) < kLeastScale) fail_overflow(position.step);
  add(part, unrecorded_);
}

void Recorder::add(const Metrics& part, Metrics& sum) const {
  sum.merge(part);
  learner_.task().derive(sum);
}

void Recorder::fail_overflow(int64_t step) {
  fail(ErrorKind::kRun,
       fmt::format("fp16 overflows in each of the last steps up to {}: the loss scale is {:.2g}",
                   step, learner_.step().loss_scale().value_or(0)),
       run_.options.out,
       "Set precision.mode to bf16 or fp32, lower optimizer.lr, or set train.clip_norm=1");
}

// Each step that is skipped halves the scale.
void Recorder::require_trained(const RunPosition& position) {
  const auto scale = learner_.step().loss_scale();
  const double begin = run_.recipe.precision.initial_scale, steps = double(position.step);
  if (scale && steps > 0 && first_step_ == 0 &&
      *scale <= std::ldexp(begin, -int(std::min(steps, 100.0))))
    fail_overflow(position.step);
}

// The first loss was computed with the initial weights, which are finite.
void Recorder::fail_not_finite(int64_t step) {
  const bool first = step == first_step_ + 1;
  fail(ErrorKind::kRun,
       first ? "the loss is not finite before any step changed a weight"
             : fmt::format("the loss is not finite by step {}{}", step,
                           where_non_finite(learner_.model())),
       run_.options.out, remedy_of_non_finite(run_.recipe, first));
}

void Recorder::record_steps(const RunPosition& position) {
  read_metrics(position);
  const Metrics part = std::exchange(unrecorded_, {});
  if (part.samples == 0) return;
  add(part, epoch_metrics_);
  log_->steps(position, part, learner_.lr());
}

std::optional<Metrics> Recorder::close_epoch(const RunPosition& position) {
  Ledger::Scope host(run_.ledger, Phase::kHost);
  record_steps(position);
  if (epoch_metrics_.samples == 0) return std::nullopt;
  epoch_metrics_.clear_if_uncounted();
  if (epoch_metrics_.overflowed == epoch_metrics_.samples &&
      position.step - sound_step_ >= kMostOverflows)
    fail_overflow(position.step);
  log_->epoch(position, epoch_metrics_, learner_.lr());
  return std::exchange(epoch_metrics_, {});
}

void Recorder::write_histograms() {
  Ledger::Scope host(run_.ledger, Phase::kHost);
  std::vector<NamedTensor> parameters = learner_.model().parameters(), gradients;
  for (const auto& [name, tensor] : parameters)
    gradients.push_back({name, learner_.gradient_of(tensor)});
  auto histograms = histograms_of("parameters", parameters);
  for (auto& histogram : histograms_of("gradients", gradients))
    histograms.push_back(std::move(histogram));
  log_->histograms(step_ + 1, histograms);
}

void Recorder::trace(int64_t step, bool ended_run) {
  if (!tracer_) return;
  const auto note = ended_run ? tracer_->finish(step) : tracer_->between_steps(step);
  if (!note) return;
  if (note->is_warning) return log_->warn(note->text);
  std::istringstream lines(note->text);  // a note is one line
  for (std::string line; std::getline(lines, line);) log_->note(line);
}

void Recorder::fill(TrainResult& result) {
  if (log_) result.tensor_peaks = log_->tensor_peaks();
  if (telemetry_) result.telemetry = telemetry_->whole();
  result.decoding = decoding_line(input_.feeder().decoded(), run_.recipe);
}

void Recorder::visit(StateVisitor& visitor) {
  visitor.value(&Checkpoint::epoch_metrics, epoch_metrics_);
  // An earlier saturate had other sums: then the epoch's values are those of the rest of it.
  const int64_t known = learner_.task().totals();
  if (known > 0 && std::ssize(epoch_metrics_.totals) != known) epoch_metrics_.totals.clear();
}

Metrics all_reduce_metrics(RunContext& run, const Task& task, const Metrics& own) {
  if (!run.group) return own;
  const std::vector<MetricName> names = task.metric_names();
  const double weight = own.weight();
  const auto times = [weight](double mean) { return weight > 0 ? mean * weight : 0; };
  // The loss; each value, and whether there is one; totals; pixels; samples; overflowed; weight.
  std::vector<double> sum = {times(own.loss)};
  for (const MetricName& each : names) {
    const auto value = own.value(each.name);
    sum.push_back(times(value.value_or(0)));
    sum.push_back(value.has_value());
  }
  for (int64_t i = 0; i < task.totals(); ++i)
    sum.push_back(i < std::ssize(own.totals) ? own.totals[size_t(i)] : 0);
  const size_t classes =
      run.recipe.train.task == TaskKind::kSegment ? most_of_all(*run.group, own.pixels.size()) : 0;
  for (size_t i = 0; i < classes; ++i) {
    const ClassPixels of = i < own.pixels.size() ? own.pixels[i] : ClassPixels();
    sum.insert(sum.end(), {double(of.hits), double(of.labelled), double(of.predicted)});
  }
  sum.insert(sum.end(), {double(own.samples), double(own.overflowed), weight});
  {
    Ledger::Scope scope(run.ledger, Phase::kReduce);
    run.group->sum(at::from_blob(sum.data(), {std::ssize(sum)}, at::kDouble));
  }
  return metrics_from(sum, names, task, classes);
}

}  // namespace saturate
