#include "saturate/train_step.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "saturate/data/error.h"
#include "saturate/gradient_reducer.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "step/compiled_step.h"
#include "step/precision.h"
#include "step/step_package.h"
#include "step/switches.h"
#include "task/class_counts.h"
#include "trace/host.h"

namespace saturate {

PrecisionMode resolve_precision(PrecisionMode mode, const at::Device& device) {
  if (mode != PrecisionMode::kAuto && mode != PrecisionMode::kDefault) return mode;
  const bool native = device.is_cuda() ? gpu_has_bf16(gpu_architecture(device))
                                       : mode == PrecisionMode::kAuto && cpu_has_bf16();
  return native ? PrecisionMode::kBf16 : PrecisionMode::kFp32;
}

namespace {

// To float: autocast does this before the loss on a GPU, but not on the CPU.
at::Tensor for_task(const Task& task, const at::Tensor& logits) {
  const bool is_half = at::isReducedFloatingType(logits.scalar_type());
  return is_half && !task.takes_half() ? logits.to(at::kFloat) : logits;
}

// Views of a batch's micro-batches, of nearly equal size: the fewest of at most `largest` images
// for the rank of `synced_world` with the most images.
std::vector<DeviceBatch> split(const DeviceBatch& batch, int64_t largest, int synced_world) {
  int64_t most = batch.count();
  if (synced_world > 1)
    most = std::max(most, (batch.global_batch + synced_world - 1) / synced_world);
  if (largest <= 0 || most <= largest) return {batch};
  const int64_t count = (most + largest - 1) / largest;
  std::vector<DeviceBatch> micro_batches(size_t(count), batch);
  const auto spread = [&](const at::Tensor& tensor, const auto& member) {
    if (!tensor.defined()) return;
    const auto views = tensor.tensor_split(count);
    for (size_t i = 0; i < views.size(); ++i) member(micro_batches[i]) = views[i];
  };
  spread(batch.images, [](DeviceBatch& one) -> at::Tensor& { return one.images; });
  spread(batch.labels, [](DeviceBatch& one) -> at::Tensor& { return one.labels; });
  spread(batch.mixed_labels, [](DeviceBatch& one) -> at::Tensor& { return one.mixed_labels; });
  for (size_t f = 0; f < batch.features.size(); ++f)
    spread(batch.features[f], [f](DeviceBatch& one) -> at::Tensor& { return one.features[f]; });
  return micro_batches;
}

// Mean logits over the views of `images` [N, 3, H, W] that `options` ask for. Shifted views move
// along the diagonal, with reflection padding, as in github.com/KellerJordan/cifar10-airbench.
at::Tensor averaged_logits(Model& model, const Task& task, const at::Tensor& images,
                           const EvaluationOptions& options) {
  const auto mirrored = [&](const at::Tensor& view) {
    const at::Tensor logits = for_task(task, model.forward(view));
    if (!options.flip) return logits;
    const at::Tensor other = for_task(task, model.forward(view.flip({3})));
    return (logits + task.mirrored(other)) / 2;
  };
  const at::Tensor centre = mirrored(images);
  if (options.shift == 0) return centre;
  const int64_t shift = options.shift, height = images.size(2), width = images.size(3);
  const at::Tensor padded = at::reflection_pad2d(images, {shift, shift, shift, shift});
  const auto moved = [&](int64_t start) {
    return mirrored(padded.narrow(2, start, height).narrow(3, start, width));
  };
  return centre / 2 + (moved(0) + moved(2 * shift)) / 4;
}

std::vector<Stage> stages_for(std::vector<Stage> stages, int segments) {
  if (stages.empty())
    fail(ErrorKind::kUsage, "the model does not define stages", "train.checkpoint_segments",
         "Set it to 0, or choose another model.name");
  if (segments > std::ssize(stages))
    fail(ErrorKind::kUsage,
         "the model has only " + std::to_string(stages.size()) + " stages, not " +
             std::to_string(segments),
         "train.checkpoint_segments", "Set it to auto, or lower it");
  return stages;
}

}  // namespace

TrainStep::TrainStep(Model& model, const Task& task, Optimizer& optimizer,
                     const StepOptions& options, Ledger& ledger)
    : model_(model),
      task_(task),
      optimizer_(optimizer),
      options_(options),
      ledger_(ledger),
      switches_(std::make_unique<SwitchesScope>()) {
  const PrecisionOptions& precision = options.precision;
  const at::Device device = model.parameters().at(0).tensor.device();
  on_cpu_ = device.is_cpu();
  if (options.label_smoothing > 0 && !task.is_cross_entropy())
    fail(ErrorKind::kUsage, "the model's own loss does not support label smoothing",
         "train.label_smoothing", "Set it to 0");
  set_switches();
  ModelFacets facets = model.facets();
  encoder_ = std::move(facets.encoder);
  if (options.checkpoint_segments > 0)
    stages_ = stages_for(std::move(facets.stages), options.checkpoint_segments);
  if (reduced_type(precision.mode) == at::kHalf)
    scaler_.emplace(GradScalerOptions{.initial_scale = precision.initial_scale,
                                      .interval = precision.growth_interval},
                    device);
  if (!scaler_) return;
  for (const auto& [name, buffer] : model.buffers())
    if (buffer.is_floating_point() && buffer.numel() > 0) statistics_.push_back(buffer);
}

TrainStep::~TrainStep() = default;

void TrainStep::set_switches() const {
  if (switches_->is_last()) return;  // what the program has set since, as for debugging, stays
  Switches to{.tf32 = uses_tf32(options_.precision.mode, options_.precision.tf32),
              .cudnn_benchmark = options_.cudnn_benchmark,
              .detect_anomaly = options_.detect_anomaly,
              .create_on_device = options_.create_on_device};
  if (on_cpu_) to.keep_host_memory = options_.keep_memory;
  switches_->set(to);
}

void TrainStep::use_compiled(std::unique_ptr<CompiledStep> compiled) {
  if (model_.facets().loss)
    fail(ErrorKind::kUsage, "the model has its own loss, and packages use the task's",
         "train.compiled", "Remove it");
  compiled_ = std::move(compiled);
}

void TrainStep::run(const DeviceBatch& batch, double lr, RunningMetrics& metrics) {
  const double global_batch = double(reducer_ ? batch.global_batch : batch.count());
  const auto micro_batches = split(batch, options_.micro_batch, options_.synced_world);
  counted_ = reducer_ || micro_batches.size() > 1 ? task_.counted(batch.labels) : at::Tensor();
  if (counted_.defined() && reducer_) {
    Ledger::Scope scope(ledger_, Phase::kReduce);
    counted_ = reducer_->total(counted_);
  }
  if (counted_.defined()) counted_ = counted_.clamp_min(1);
  const at::Tensor statistics = flat_statistics();
  for (const DeviceBatch& one : micro_batches) {
    const bool last = &one == &micro_batches.back();
    const Output output = compute(one, double(one.count()) / global_batch, last);
    if (one.count() == 0) continue;
    Ledger::Scope scope(ledger_, Phase::kHost);
    metrics.add(output.loss, output.logits, one.labels, /*may_overflow=*/scaler_.has_value());
  }
  keep_finite_statistics(statistics);
  update(lr);
}

// Concatenated, [values]; undefined if there are none.
at::Tensor TrainStep::flat_statistics() const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& statistic : statistics_) rows.push_back(statistic.flatten());
  return rows.empty() ? at::Tensor() : at::cat(rows);
}

// A forward that overflows in fp16 would leave a NaN in BatchNorm's running mean for good: the
// scaler only makes the optimizer skip the step.
void TrainStep::keep_finite_statistics(const at::Tensor& before) {
  if (!before.defined()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor now = flat_statistics(), kept = at::where(at::isfinite(now), now, before);
  at::_foreach_copy_(statistics_, at::unflatten_dense_tensors(kept, statistics_));
}

TrainStep::Output TrainStep::compute(const DeviceBatch& batch, double weight, bool last) {
  if (compiled_ && batch.count() == compiled_->micro_batch())
    return compute_compiled(batch, weight, last);
  if (compiled_ && first_uncompiled_ == 0) first_uncompiled_ = batch.count();
  const Output output = forward(batch, last);
  if (counted_.defined())  // the loss weight is known only on the device
    backward(output.loss * (task_.counted(batch.labels) / counted_), 1, last);
  else
    backward(output.loss, weight, last);
  return output;
}

TrainStep::Output TrainStep::compute_compiled(const DeviceBatch& batch, double weight, bool last) {
  CompiledStep::Output output;
  {
    Ledger::Scope scope(ledger_, Phase::kForward);
    const at::Tensor factor = counted_.defined()
                                  ? (task_.counted(batch.labels) / counted_).to(at::kFloat)
                                  : at::full({}, weight, batch.images.options().dtype(at::kFloat));
    output = compiled_->run(batch.images, batch.labels, scaler_ ? scaler_->scale(factor) : factor);
  }
  const Output result{output.logits, output.loss};
  if (reducer_ && last) {
    Ledger::Scope scope(ledger_, Phase::kReduce);
    reducer_->before_forward();
    reducer_->sum(compiled_->trained(), output.gradients);
  } else {
    compiled_->add_gradients(std::move(output));
  }
  optimizer_.take_gradients();
  return result;
}

TrainStep::Output TrainStep::forward(const DeviceBatch& batch, bool last) {
  Ledger::Scope scope(ledger_, Phase::kForward);
  if (reducer_ && last) reducer_->before_forward();
  AutocastScope autocast(options_.precision.mode, batch.images.device().type());
  Output output;
  output.logits = for_task(task_, logits_of(batch));
  const Targets targets{batch.labels, batch.mixed_labels, batch.lambda};
  output.loss = batch.count() == 0 ? empty_loss(output.logits)
                                   : task_.loss(output.logits, targets, options_.label_smoothing);
  return output;
}

// Empty batch: zero loss connected to every parameter, those of a custom loss too.
at::Tensor TrainStep::empty_loss(const at::Tensor& logits) const {
  return reducer_ ? logits.sum() + reducer_->zero_loss() : logits.sum();
}

at::Tensor TrainStep::logits_of(const DeviceBatch& batch) {
  if (!batch.features.empty()) return encoder_.value().decode(batch.features);
  return stages_.empty()
             ? model_.forward(batch.images)
             : checkpoint_sequential(stages_, options_.checkpoint_segments, batch.images);
}

void TrainStep::backward(const at::Tensor& loss, double weight, bool last) {
  Ledger::Scope scope(ledger_, Phase::kBackward);
  const at::Tensor weighted = weight == 1 ? loss : loss * weight;
  const at::Tensor scaled = scaler_ ? scaler_->scale(weighted) : weighted;
  std::optional<Ledger::Scope> exposed;  // starts when backward has nothing left to compute
  if (reducer_)
    reducer_->backward(scaled, last, [&] { exposed.emplace(ledger_, Phase::kReduce); });
  else
    scaled.backward();
  exposed.reset();
  optimizer_.take_gradients();
}

void TrainStep::update(double lr) {
  Ledger::Scope scope(ledger_, Phase::kOptimizer);
  at::Tensor found_inf;
  if (scaler_) found_inf = scaler_->unscale(optimizer_.gradients());
  if (options_.clip_norm > 0) clip_gradients(optimizer_.gradients(), options_.clip_norm);
  if (observer_) observer_();
  optimizer_.step(lr, found_inf);
  if (scaler_) scaler_->update();
  optimizer_.zero_grad();
}

void TrainStep::abandon() {
  optimizer_.zero_grad();
  for (const auto& [name, parameter] : model_.parameters()) parameter.mutable_grad().reset();
  if (scaler_) scaler_->abandon();
}

std::vector<NamedTensor> TrainStep::scaler_state() const {
  return scaler_ ? scaler_->state() : std::vector<NamedTensor>();
}

std::optional<double> TrainStep::loss_scale() const {
  return scaler_ ? std::optional(scaler_->value()) : std::nullopt;
}

void TrainStep::load_scaler_state(const std::vector<NamedTensor>& state) {
  if (scaler_) scaler_->load_state(state);
}

namespace {

// The model evaluates for as long as this lives, also if an exception ends it; then it trains.
class EvaluationMode {
 public:
  explicit EvaluationMode(Model& model) : model_(model) { model.set_training(false); }
  ~EvaluationMode() { model_.set_training(true); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Model& model_;
};

}  // namespace

std::optional<Metrics> evaluate(Model& model, const Task& task, Feeder& feeder,
                                const EvaluationOptions& options) {
  const c10::InferenceMode inference(options.inference_mode);
  const c10::NoGradGuard no_grad;
  const Tf32Scope tf32(uses_tf32(options.precision, options.tf32));
  const bool keeps = options.whole && task.keeps_outputs();
  const EvaluationMode mode(model);
  RunningMetrics metrics(task);
  KeptOutputs kept;
  DeviceBatch batch;
  bool cancelled = false;
  while (!cancelled && feeder.next(batch)) {
    if (batch.count() == 0) continue;  // an empty batch of this process at the end of the epoch
    AutocastScope autocast(options.precision, batch.images.device().type());
    const at::Tensor logits = averaged_logits(model, task, batch.images, options);
    metrics.add(task.mean_loss(logits, batch.labels, /*smoothing=*/0), logits, batch.labels);
    if (keeps) kept.add(logits, batch.labels);
    cancelled = options.observer && !options.observer(batch, logits);
  }
  if (cancelled) return std::nullopt;
  Metrics found = metrics.read();
  found.clear_if_uncounted();
  if (const at::Tensor rows = kept.rows(); rows.defined()) kept.finish(task, rows, found);
  return found;
}

}  // namespace saturate
