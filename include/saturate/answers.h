// What a classifier answers over an evaluation, image by image, beside the tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace saturate {

// Belongs to one thread.
class Answers {
 public:
  void clear();
  // logits [N, outputs] and labels [N] on one device, which nothing waits for. Segmentation's
  // logits, of four dimensions, are passed over.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  // Outputs of the model; 0: nothing was added.
  int64_t outputs() const { return outputs_; }
  // Of each image, in order: label * outputs + the class of its largest logit. [N] int64 on the
  // CPU; waits for the device.
  at::Tensor cells() const;

 private:
  int64_t outputs_ = 0;
  std::vector<at::Tensor> cells_;
};

}  // namespace saturate
