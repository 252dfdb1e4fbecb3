// SPDX-License-Identifier: BSD-3-Clause
// THE step. Training, benches and tests all run this one:
//
//   for each batch:
//     for each micro-batch (train.accumulate):
//       logits = model(images)          forward, under autocast where asked
//       loss   = task.loss(logits, labels), of both labels if images are mixed
//       (scale * weight * loss).backward()   backward; weight: the micro-batch's share of what
//                                       counts (Task::counted()); scale: fp16 only
//                                       (with train.compiled these three are one call)
//       totals += task.sums()           host: counters stay on the device, read late
//     found_inf = scaler.unscale()      optimizer, fp16 only
//     clip(gradients, train.clip_norm)
//     (with several processes: the last micro-batch's backward has all-reduced the gradients)
//     optimizer.step(lr, found_inf)     one update per parameter group, none if found_inf
//     scaler.update()                   fp16 only; a non-finite loss counts as found_inf, and
//                                       BatchNorm's statistics stay finite
//     optimizer.zero_grad()             gradients set to none
//
// With gradient checkpointing (train.checkpoint_segments), backward reruns forward's segments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "saturate/data/step_options.h"
#include "saturate/feed.h"
#include "saturate/grad_scaler.h"
#include "saturate/ledger.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/task.h"

namespace saturate {

class CompiledStep;
class SwitchesScope;
class GradientReducer;

// Resolves kAuto and kDefault for a device.
PrecisionMode resolve_precision(PrecisionMode mode, const at::Device& device);

struct StepOptions {
  PrecisionOptions precision = {};  // with resolved mode
  double label_smoothing = 0;
  int micro_batch = 0;  // maximum size; 0: the local batch
  // Under SyncBatchNorm the world size: every rank then computes equally many micro-batches, some
  // possibly empty, so that all join each all-reduce.
  int synced_world = 1;
  double clip_norm = 0;         // maximum global gradient norm; 0: no clipping
  int checkpoint_segments = 0;  // of the model's stages; 0: none
  // Process-wide switches, like TF32.
  bool cudnn_benchmark = false;
  bool create_on_device = true;
  bool keep_memory = true;  // CPU only: freed tensor memory is kept for later tensors
  bool detect_anomaly = false;
};

// Not for concurrent use. The constructor's arguments must outlive it.
class TrainStep {
 public:
  // REQUIRES: the model is on its device. Sets the process-wide switches: TF32, and those of
  // `options`; the end of the last step restores the values from before the first. Fails with
  // kUsage if more segments are requested than the model has stages, and if the task does not
  // support label smoothing.
  TrainStep(Model& model, const Task& task, Optimizer& optimizer, const StepOptions& options,
            Ledger& ledger);

  ~TrainStep();

  const Task& task() const { return task_; }

  // Sets the process-wide switches again, after other steps were created or run.
  void set_switches() const;

  // Micro-batches of `compiled`'s size are computed by it from now on, charged to kForward as a
  // whole; others, such as an epoch's last, as before. REQUIRES: it was made for this model.
  void use_compiled(std::unique_ptr<CompiledStep> compiled);
  // Size of the first micro-batch that did not match; 0: none.
  int64_t first_uncompiled() const { return first_uncompiled_; }

  // From now on called in each step with the complete gradients, right before they are used.
  void observe_gradients(std::function<void()> observer) { observer_ = std::move(observer); }
  // From now on each batch is this rank's local batch (see DeviceBatch::global_batch), and may
  // be empty; run() is collective. Waiting for others in the last micro-batch's backward is charged
  // to kReduce. `reducer` must outlive this.
  void use_reducer(GradientReducer& reducer) { reducer_ = &reducer; }

  // One update from one batch, added to `metrics`, which are of the same task.
  void run(const DeviceBatch& batch, double lr, RunningMetrics& metrics);

  // Discards a step in which run() threw before updating anything.
  void abandon();

  // The scaler's state, empty unless the precision is fp16. It may be missing from loaded state, as
  // after a run with another precision: then the scaler is reset.
  std::vector<NamedTensor> scaler_state() const;
  // The loss scale; waits for the device. Empty unless the precision is fp16.
  std::optional<double> loss_scale() const;
  void load_scaler_state(const std::vector<NamedTensor>& state);

 private:
  struct Output {
    at::Tensor logits, loss;  // the model's outputs; the mean over the micro-batch
  };
  // All of one micro-batch; `weight`: its loss weight.
  Output compute(const DeviceBatch& batch, double weight, bool last);
  Output compute_compiled(const DeviceBatch& batch, double weight, bool last);
  Output forward(const DeviceBatch& batch, bool last);
  at::Tensor empty_loss(const at::Tensor& logits) const;
  at::Tensor logits_of(const DeviceBatch& batch);
  void backward(const at::Tensor& loss, double weight, bool last);
  void update(double lr);
  at::Tensor flat_statistics() const;
  void keep_finite_statistics(const at::Tensor& before);

  Model& model_;
  const Task& task_;
  Optimizer& optimizer_;
  StepOptions options_;
  bool on_cpu_ = false;
  std::vector<Stage> stages_;  // empty without gradient checkpointing
  std::optional<EncoderDecoder> encoder_;
  Ledger& ledger_;
  std::optional<GradScaler> scaler_;    // fp16
  std::vector<at::Tensor> statistics_;  // fp16: the model's floating-point buffers
  std::unique_ptr<SwitchesScope> switches_;
  std::unique_ptr<CompiledStep> compiled_;
  int64_t first_uncompiled_ = 0;
  std::function<void()> observer_;
  // Task::counted() of a batch with several micro-batches, or of all processes' batches; else
  // undefined.
  at::Tensor counted_;
  GradientReducer* reducer_ = nullptr;  // with several processes
};

// Sees each batch of an evaluation and the model's outputs; false cancels the evaluation.
using EvaluationObserver = std::function<bool(const DeviceBatch&, const at::Tensor& logits)>;

struct EvaluationOptions {
  PrecisionMode precision = PrecisionMode::kFp32;
  bool flip = false;  // averages the logits of each image and its mirror image
  int shift = 0;      // pixels; shifted copies get half of the logits' weight
  EvaluationObserver observer = nullptr;
  bool tf32 = true;            // except in fp32 mode
  bool inference_mode = true;  // torch's inference mode, not only without gradients
  // Calls Task::whole() at the end, if the task keeps its outputs. False if `feeder` has only this
  // process's samples: the task needs those of all.
  bool whole = true;
};

// Runs the model on everything from `feeder`, in evaluation mode and without gradients; leaves the
// model in training mode, also if it fails, and TF32 as it was. Empty if the observer cancelled;
// NaN, unlike in training, if no pixel is labelled.
std::optional<Metrics> evaluate(Model& model, const Task& task, Feeder& feeder,
                                const EvaluationOptions& options);

}  // namespace saturate
