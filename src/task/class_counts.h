// Pixel counts by class, for segmentation metrics; the classes of whole images; and all outputs of
// an evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "saturate/task.h"

namespace saturate {

// Pixels of each class, [3, classes] int64 on the tensors' device; the rows are correct, labelled,
// and predicted. `labels`, `found`: [N, H, W] int64, within the classes where `counted` [N, H, W]
// bool is true; other pixels are ignored. Does not wait for the GPU.
at::Tensor count_classes(const at::Tensor& labels, const at::Tensor& found,
                         const at::Tensor& counted, int64_t classes);

// The GPU algorithm, for any device: most pixels belong to few classes, and atomic additions to one
// counter are serialised, so each counter is split into 32 to 1,024 for neighbouring pixels. The
// counters take 2 MiB, or 256 bytes per class if that is more.
at::Tensor count_classes_spread(const at::Tensor& labels, const at::Tensor& found,
                                const at::Tensor& counted, int64_t classes);

// A classifier's answers over an evaluation, image by image, on the tensors' device. Belongs to one
// thread.
class Answers {
 public:
  void clear();
  // logits [N, outputs] and labels [N] on one device; does not wait for it. Segmentation's
  // 4-dimensional logits are ignored.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  // Outputs of the model; 0 if nothing was added.
  int64_t outputs() const { return outputs_; }
  // For each image, in order: label * outputs + the class of its largest logit. [N] int64 on the
  // CPU; waits for the device.
  at::Tensor cells() const;

 private:
  int64_t outputs_ = 0;
  std::vector<at::Tensor> cells_;
};

// All outputs and labels of an evaluation, for Task::whole(). Belongs to one thread.
class KeptOutputs {
 public:
  void clear();
  // outputs [N, ...] and labels [N, ...], in each call of the same shapes but for N. Waits for
  // their device only after many values, which it then no longer holds.
  void add(const at::Tensor& outputs, const at::Tensor& labels);
  // [samples, outputs and labels] double on the host, of all samples in order; undefined without
  // any.
  at::Tensor rows();
  // Task::whole() of rows(), of this process or of several, in the shapes and types that were
  // added; if only other processes have added samples, as [N, values] double.
  void finish(const Task& task, const at::Tensor& rows, Metrics& metrics) const;
  // Values that the model returns for a sample; 0 if nothing was added.
  int64_t outputs() const { return outputs_; }
  // For finish(), if only other processes have added samples.
  void set_outputs(int64_t outputs) { outputs_ = outputs; }

 private:
  // A sample's shape, and the type of its values.
  struct Form {
    std::vector<int64_t> shape = {-1};
    at::ScalarType type = at::kDouble;
    // [N, values] double as [N, ...].
    at::Tensor restored(const at::Tensor& rows) const;
  };
  static Form form_of(const at::Tensor& values);
  void move_to_host();

  Form outputs_form_, labels_form_;
  int64_t outputs_ = 0;
  std::vector<at::Tensor> rows_, recent_;  // on the host, and after them on the outputs' device
  int64_t recent_values_ = 0;
};

}  // namespace saturate
