// A classifier's answers over an evaluation, image by image, on the tensors' device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace saturate {

// Belongs to one thread.
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

}  // namespace saturate
