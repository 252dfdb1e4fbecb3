// THE step. Training, benches and tests all run this one:
//
//   for each batch:
//     logits = model(images)          forward, under autocast where asked
//     loss   = cross_entropy(logits, labels)
//     loss.backward()                 backward
//     optimizer.step(lr)              optimizer: one fused update per parameter group
//     optimizer.zero_grad()             gradients set to none
//     totals += loss, hits            host: counters stay on the device, read late
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "saturate/feed.h"
#include "saturate/ledger.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/recipe.h"

namespace saturate {

// Means over some samples.
struct Metrics {
  int64_t samples = 0;
  double loss = 0;
  double accuracy = 0;              // top-1
  std::optional<double> accuracy5;  // top-5, where there are more than five classes

  // Makes these the means over the samples of both.
  void merge(const Metrics& other);
};

// Sums on the device; only read() waits for it.
class RunningMetrics {
 public:
  // `loss`: the mean over the batch; logits [N, classes], labels [N].
  void add(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels);
  // The means so far; the sums start again from nothing.
  Metrics read();

 private:
  at::Tensor sums_;  // [3] double: loss * N, top-1 hits, top-5 hits
  int64_t samples_ = 0;
  bool has_top5_ = false;
};

// Whether the CPU computes bf16 natively (AVX-512 BF16 or AMX); without, it is slower than fp32.
bool cpu_has_bf16();
// Resolves kAuto for a device.
PrecisionMode resolve_precision(PrecisionMode mode, const at::Device& device);

// Not for concurrent use. What the constructor takes must outlive it.
class TrainStep {
 public:
  // REQUIRES: `precision` is resolved.
  TrainStep(Model& model, Optimizer& optimizer, PrecisionMode precision, double label_smoothing,
            Ledger& ledger);

  // One update from one batch, added to `metrics`.
  void run(const DeviceBatch& batch, double lr, RunningMetrics& metrics);

 private:
  Model& model_;
  Optimizer& optimizer_;
  PrecisionMode precision_;
  double label_smoothing_;
  Ledger& ledger_;
};

// Sees each batch of an evaluation and its logits [N, classes]; false gives the evaluation up.
using EvaluationObserver = std::function<bool(const DeviceBatch&, const at::Tensor& logits)>;

struct EvaluationOptions {
  PrecisionMode precision = PrecisionMode::kFp32;
  bool flip = false;  // logits are the mean over each image and its mirror image
  EvaluationObserver observer;
};

// Runs the model over everything `feeder` gives, in evaluation mode and without gradients; leaves
// the model in training mode. Empty where the observer gave up.
std::optional<Metrics> evaluate(Model& model, Feeder& feeder, const EvaluationOptions& options);

}  // namespace saturate
