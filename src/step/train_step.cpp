#include "saturate/train_step.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <cpuinfo.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "saturate/compiled_step.h"
#include "saturate/gradients.h"
#include "step/precision.h"

namespace saturate {

bool cpu_has_bf16() {
  return cpuinfo_initialize() && (cpuinfo_has_x86_avx512bf16() || cpuinfo_has_x86_amx_bf16());
}

PrecisionMode resolve_precision(PrecisionMode mode, const at::Device& device) {
  if (mode != PrecisionMode::kAuto) return mode;
  const bool native = device.is_cuda() || cpu_has_bf16();
  return native ? PrecisionMode::kBf16 : PrecisionMode::kFp32;
}

void Metrics::merge(const Metrics& other) {
  if (other.samples == 0) return;
  const double share = double(other.samples) / double(samples + other.samples);
  const auto mean = [share](double a, double b) { return a + (b - a) * share; };
  loss = mean(loss, other.loss);
  accuracy = mean(accuracy, other.accuracy);
  if (other.accuracy5) accuracy5 = mean(accuracy5.value_or(0), *other.accuracy5);
  samples += other.samples;
}

void RunningMetrics::add(const at::Tensor& loss, const at::Tensor& logits,
                         const at::Tensor& labels) {
  const c10::NoGradGuard no_grad;
  const int64_t n = labels.size(0), classes = logits.size(1);
  const auto ranked = std::get<1>(at::topk(logits.detach(), std::min<int64_t>(5, classes), 1));
  const auto hits = ranked.eq(labels.unsqueeze(1));  // [N, up to 5]
  const auto batch =
      at::stack({loss.detach().to(at::kDouble) * n, hits.select(1, 0).sum().to(at::kDouble),
                 hits.sum().to(at::kDouble)});
  if (!sums_.defined()) sums_ = at::zeros({3}, batch.options());
  sums_ += batch;
  samples_ += n;
  has_top5_ = classes > 5;
}

Metrics RunningMetrics::read() {
  Metrics metrics;
  metrics.samples = samples_;
  if (samples_ > 0) {
    const at::Tensor sums = sums_.cpu();  // the one wait for the device
    const double* value = sums.const_data_ptr<double>();
    metrics.loss = value[0] / double(samples_);
    metrics.accuracy = value[1] / double(samples_);
    if (has_top5_) metrics.accuracy5 = value[2] / double(samples_);
  }
  *this = {};
  return metrics;
}

namespace {

// In float: autocast would do the same before the loss on a GPU, but not on the CPU.
at::Tensor unreduced(const at::Tensor& logits) {
  return at::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
}

// Views of a batch's parts, as few and as equal as `part` images at most make them.
std::vector<DeviceBatch> split(const DeviceBatch& batch, int64_t part) {
  if (part <= 0 || batch.count() <= part) return {batch};
  const int64_t count = (batch.count() + part - 1) / part;
  const auto images = batch.images.tensor_split(count), labels = batch.labels.tensor_split(count);
  std::vector<DeviceBatch> parts(size_t(count), batch);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].images = images[i];
    parts[i].labels = labels[i];
  }
  return parts;
}

// Mean logits over the views of `images` [N, 3, H, W] that `options` ask for. Shifted views go
// along the diagonal, the border filled by reflection, as in
// github.com/KellerJordan/cifar10-airbench.
at::Tensor averaged_logits(Model& model, const at::Tensor& images,
                           const EvaluationOptions& options) {
  const auto mirrored = [&](const at::Tensor& view) {
    const at::Tensor logits = unreduced(model.forward(view));
    return options.flip ? (logits + unreduced(model.forward(view.flip({3})))) / 2 : logits;
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

}  // namespace

TrainStep::TrainStep(Model& model, Optimizer& optimizer, const StepOptions& options, Ledger& ledger)
    : model_(model), optimizer_(optimizer), options_(options), ledger_(ledger) {
  const PrecisionOptions& precision = options.precision;
  allow_tf32(precision.mode == PrecisionMode::kTf32);
  if (reduced_type(precision.mode) == at::kHalf)
    scaler_.emplace(GradScalerOptions{.initial_scale = precision.initial_scale,
                                      .interval = precision.growth_interval},
                    model.parameters().at(0).tensor.device());
}

TrainStep::~TrainStep() = default;

void TrainStep::use_compiled(std::unique_ptr<CompiledStep> compiled) {
  compiled_ = std::move(compiled);
}

void TrainStep::run(const DeviceBatch& batch, double lr, RunningMetrics& metrics) {
  for (const DeviceBatch& part : split(batch, options_.part)) {
    const Output output = compute(part, double(part.count()) / double(batch.count()));
    count(output, part, metrics);
  }
  update(lr);
}

TrainStep::Output TrainStep::compute(const DeviceBatch& part, double share) {
  if (compiled_ && part.count() == compiled_->part()) return compute_compiled(part, share);
  if (compiled_ && first_uncompiled_ == 0) first_uncompiled_ = part.count();
  const Output output = forward(part);
  backward(output.loss, share);
  return output;
}

TrainStep::Output TrainStep::compute_compiled(const DeviceBatch& part, double share) {
  Ledger::Scope scope(ledger_, Phase::kForward);
  const at::Tensor factor = at::full({}, share, part.images.options().dtype(at::kFloat));
  const auto output =
      compiled_->run(part.images, part.labels, scaler_ ? scaler_->scale(factor) : factor);
  optimizer_.take_gradients();
  return {output.logits, output.loss};
}

TrainStep::Output TrainStep::forward(const DeviceBatch& part) {
  Ledger::Scope scope(ledger_, Phase::kForward);
  AutocastScope autocast(options_.precision.mode, part.images.device().type());
  Output output;
  output.logits = unreduced(model_.forward(part.images));
  output.loss =
      at::cross_entropy_loss(output.logits, part.labels, /*weight=*/{}, at::Reduction::Mean,
                             /*ignore_index=*/-100, options_.label_smoothing);
  return output;
}

void TrainStep::backward(const at::Tensor& loss, double share) {
  Ledger::Scope scope(ledger_, Phase::kBackward);
  const at::Tensor shared = share == 1 ? loss : loss * share;
  (scaler_ ? scaler_->scale(shared) : shared).backward();
  optimizer_.take_gradients();
}

void TrainStep::count(const Output& output, const DeviceBatch& part, RunningMetrics& metrics) {
  Ledger::Scope scope(ledger_, Phase::kHost);
  metrics.add(output.loss, output.logits, part.labels);
}

void TrainStep::update(double lr) {
  Ledger::Scope scope(ledger_, Phase::kOptimizer);
  at::Tensor found_inf;
  if (scaler_) found_inf = scaler_->unscale(optimizer_.gradients());
  if (options_.clip_norm > 0) clip_gradients(optimizer_.gradients(), options_.clip_norm);
  optimizer_.step(lr, found_inf);
  if (scaler_) scaler_->update();
  optimizer_.zero_grad();
}

std::vector<NamedTensor> TrainStep::scaler_state() const {
  return scaler_ ? scaler_->state() : std::vector<NamedTensor>();
}

void TrainStep::load_scaler_state(const std::vector<NamedTensor>& state) {
  if (scaler_) scaler_->load_state(state);
}

std::optional<Metrics> evaluate(Model& model, Feeder& feeder, const EvaluationOptions& options) {
  const c10::InferenceMode inference;
  allow_tf32(options.precision == PrecisionMode::kTf32);
  model.set_training(false);
  RunningMetrics metrics;
  DeviceBatch batch;
  bool given_up = false;
  while (!given_up && feeder.next(batch)) {
    AutocastScope autocast(options.precision, batch.images.device().type());
    const at::Tensor logits = averaged_logits(model, batch.images, options);
    metrics.add(at::cross_entropy_loss(logits, batch.labels), logits, batch.labels);
    given_up = options.observer && !options.observer(batch, logits);
  }
  model.set_training(true);
  return given_up ? std::nullopt : std::optional(metrics.read());
}

}  // namespace saturate
