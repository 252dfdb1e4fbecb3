// THE step. Training, benches and tests all run this one:
//
//   for each batch:
//     for each part of the batch (train.accumulate):
//       logits = model(images)          forward, under autocast where asked
//       loss   = cross_entropy(logits, labels), of both labels where the images are mixed; of
//                segmentation over the pixels that are not ignored
//       (scale * share * loss).backward()   backward: the part's share of the samples (of the
//                                             labelled pixels), and the
//                                             scaler's factor where the precision is fp16
//                                       (these three are one call of a compiled step:
//                                       train.compiled)
//       totals += loss, hits            host: counters stay on the device, read late
//     found_inf = scaler.unscale()      optimizer, fp16 only
//     clip(gradients, train.clip_norm)
//     (of several processes: backward of the last part has summed the gradients over all of them)
//     optimizer.step(lr, found_inf)       one update per parameter group, none where found_inf
//     scaler.update()                     fp16 only; a loss that is not finite is such a step too,
//                                         and BatchNorm's statistics stay finite
//     optimizer.zero_grad()               gradients set to none
//
// Where the model is checkpointed (train.checkpoint_segments), backward runs forward's segments
// again.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "saturate/feed.h"
#include "saturate/grad_scaler.h"
#include "saturate/ledger.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/step_options.h"

namespace saturate {

class CompiledStep;
class GradientReducer;

// Pixels of one class in segmentation, ignored ones left out.
struct ClassPixels {
  int64_t hits = 0;       // labelled and predicted so
  int64_t labelled = 0;   // labelled so
  int64_t predicted = 0;  // predicted so
};

// Means over some samples; of segmentation over their labelled pixels.
struct Metrics {
  int64_t samples = 0;
  double loss = 0;
  double accuracy = 0;              // top-1
  std::optional<double> accuracy5;  // top-5, where there are more than five classes
  std::vector<ClassPixels> pixels;  // [classes], segmentation alone
  // Of the samples those whose loss overflowed in fp16, in steps that were left out: no mean counts
  // them, and where there are no others the means are not numbers.
  int64_t overflowed = 0;

  // Intersection over union, averaged over the classes that are labelled or predicted anywhere
  // (Jaccard index, macro average); empty without such a class.
  std::optional<double> mean_iou() const;
  // Makes these the means over the samples of both.
  void merge(const Metrics& other);
};

// Sums beside the tensors; only read() waits for a device.
class RunningMetrics {
 public:
  // `loss`: the mean over the batch; logits [N, classes], labels [N]. Of equal logits the one of
  // the lower class comes first, on a GPU the one that topk() takes. Of segmentation logits
  // [N, classes, H, W] and labels [N, H, W], negative where they are ignored. `may_overflow`: a
  // loss that is not finite counts as Metrics::overflowed.
  void add(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels,
           bool may_overflow = false);
  // Adds what `other` has counted, which it keeps; shares no memory with it.
  void add(const RunningMetrics& other);
  // The means so far; the sums start again from nothing.
  Metrics read();

 private:
  void add_pixels(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels,
                  const at::Tensor& counts);
  void read_pixels(Metrics& metrics) const;

  // loss * N, top-1 hits, top-5 hits: on the CPU, and [3] double on a GPU, undefined without one.
  std::array<double, 3> here_{};
  at::Tensor there_;
  int64_t samples_ = 0;
  bool has_top5_ = false;
  // Segmentation, beside the tensors: loss * labelled pixels [] double, and pixels by class,
  // [3, classes] int64: hits, labelled, predicted.
  at::Tensor pixel_loss_, pixels_;
  at::Tensor overflowed_;  // samples, [] double beside the tensors; undefined where none may
};

// Whether the CPU computes bf16 natively (AVX-512 BF16 or AMX); without, it is slower than fp32.
bool cpu_has_bf16();
// Resolves kAuto and kDefault for a device.
PrecisionMode resolve_precision(PrecisionMode mode, const at::Device& device);

struct StepOptions {
  PrecisionOptions precision = {};  // its mode resolved
  double label_smoothing = 0;
  int part = 0;                 // images computed together, at most; 0: the whole batch
  double clip_norm = 0;         // largest norm of all gradients together; 0: any
  int checkpoint_segments = 0;  // of the model's stages; 0: none
  // Switches of the whole process, as is TF32.
  bool cudnn_benchmark = true;
  bool create_on_device = true;
  bool keep_memory = true;  // on a CPU alone: see keep_host_memory()
  bool detect_anomaly = false;
};

// Not for concurrent use. What the constructor takes must outlive it.
class TrainStep {
 public:
  // REQUIRES: the model is on its device. Sets the process's switches: TF32, and those of
  // `options`. Fails with kUsage where more segments are asked for than the model has stages.
  TrainStep(Model& model, Optimizer& optimizer, const StepOptions& options, Ledger& ledger);

  ~TrainStep();

  // Sets the process's switches again, after other steps were made or run.
  void set_switches() const;

  // Parts of as many images as `compiled` takes are computed by it from here on, which is charged
  // to kForward as a whole; others, such as an epoch's last, as before. REQUIRES: it was made for
  // this model.
  void use_compiled(std::unique_ptr<CompiledStep> compiled);
  // Images in the first part that was of another size; 0: there was none.
  int64_t first_uncompiled() const { return first_uncompiled_; }

  // From now on called in each step with the gradients complete, right before they are used.
  void observe_gradients(std::function<void()> observer) { observer_ = std::move(observer); }
  // Each batch is this process's share of one of several processes' (DeviceBatch::whole) from here
  // on, and may be empty; run() is collective. What the last part's backward waits for
  // others is charged to kReduce. `reducer` must outlive this.
  void use_reducer(GradientReducer& reducer) { reducer_ = &reducer; }

  // One update from one batch, added to `metrics`.
  void run(const DeviceBatch& batch, double lr, RunningMetrics& metrics);

  // Forgets a step that run() threw from before it updated anything.
  void abandon();

  // The scaler's state, empty where the precision is not fp16. It may be missing from what is
  // loaded, as after a run of another precision: then the scaler starts anew.
  std::vector<NamedTensor> scaler_state() const;
  // The scaler's factor; waits for the device. Empty where the precision is not fp16.
  std::optional<double> loss_scale() const;
  void load_scaler_state(const std::vector<NamedTensor>& state);

 private:
  struct Output {
    at::Tensor logits, loss;  // [N, classes]; the mean over the part
  };
  Output compute(const DeviceBatch& part, double share, bool last);
  Output compute_compiled(const DeviceBatch& part, double share, bool last);
  Output forward(const DeviceBatch& part, bool last);
  at::Tensor empty_loss(const at::Tensor& logits) const;
  at::Tensor logits_of(const DeviceBatch& part);
  void backward(const at::Tensor& loss, double share, bool last);
  void count(const Output& output, const DeviceBatch& part, RunningMetrics& metrics);
  void update(double lr);
  at::Tensor flat_statistics() const;
  void keep_finite_statistics(const at::Tensor& before);

  Model& model_;
  Optimizer& optimizer_;
  StepOptions options_;
  std::vector<Stage> stages_;  // empty where nothing is checkpointed
  Ledger& ledger_;
  std::optional<GradScaler> scaler_;    // fp16
  std::vector<at::Tensor> statistics_;  // fp16: the model's buffers of floating point
  std::unique_ptr<CompiledStep> compiled_;
  int64_t first_uncompiled_ = 0;
  std::function<void()> observer_;
  at::Tensor pixels_;  // of a batch in parts: its labelled pixels, []; else undefined
  GradientReducer* reducer_ = nullptr;  // of several processes
};

// Sees each batch of an evaluation and its logits [N, classes]; false gives the evaluation up.
using EvaluationObserver = std::function<bool(const DeviceBatch&, const at::Tensor& logits)>;

struct EvaluationOptions {
  PrecisionMode precision = PrecisionMode::kFp32;
  bool flip = false;  // logits are the mean over each image and its mirror image
  int shift = 0;      // pixels; half of the logits' weight goes to the image moved both ways
  EvaluationObserver observer = nullptr;
  bool tf32 = true;            // but in fp32
  bool inference_mode = true;  // torch's, instead of doing without gradients only
};

// Runs the model over everything `feeder` gives, in evaluation mode and without gradients; leaves
// the model in training mode. Empty where the observer gave up.
std::optional<Metrics> evaluate(Model& model, Feeder& feeder, const EvaluationOptions& options);

}  // namespace saturate
