#include "saturate/train_step.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <cpuinfo.h>

#include <algorithm>

#include "step/autocast.h"

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

TrainStep::TrainStep(Model& model, Optimizer& optimizer, PrecisionMode precision,
                     double label_smoothing, Ledger& ledger)
    : model_(model),
      optimizer_(optimizer),
      precision_(precision),
      label_smoothing_(label_smoothing),
      ledger_(ledger) {}

void TrainStep::run(const DeviceBatch& batch, double lr, RunningMetrics& metrics) {
  at::Tensor logits, loss;
  {
    Ledger::Scope scope(ledger_, Phase::kForward);
    AutocastScope autocast(precision_, batch.images.device().type());
    logits = model_.forward(batch.images);
    // In float: autocast would do the same on a GPU, but not on the CPU.
    logits = logits.to(at::kFloat);
    loss = at::cross_entropy_loss(logits, batch.labels, /*weight=*/{}, at::Reduction::Mean,
                                  /*ignore_index=*/-100, label_smoothing_);
  }
  {
    Ledger::Scope scope(ledger_, Phase::kBackward);
    loss.backward();
  }
  {
    Ledger::Scope scope(ledger_, Phase::kOptimizer);
    optimizer_.step(lr);
    optimizer_.zero_grad();
  }
  Ledger::Scope scope(ledger_, Phase::kHost);
  metrics.add(loss, logits, batch.labels);
}

std::optional<Metrics> evaluate(Model& model, Feeder& feeder, const EvaluationOptions& options) {
  const c10::InferenceMode inference;
  model.set_training(false);
  RunningMetrics metrics;
  DeviceBatch batch;
  bool given_up = false;
  while (!given_up && feeder.next(batch)) {
    AutocastScope autocast(options.precision, batch.images.device().type());
    at::Tensor logits = model.forward(batch.images).to(at::kFloat);
    if (options.flip) logits = (logits + model.forward(batch.images.flip({3})).to(at::kFloat)) / 2;
    metrics.add(at::cross_entropy_loss(logits, batch.labels), logits, batch.labels);
    given_up = options.observer && !options.observer(batch, logits);
  }
  model.set_training(true);
  return given_up ? std::nullopt : std::optional(metrics.read());
}

}  // namespace saturate
