// The cross entropy of language models, in little memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate {

// The mean over the labels that are not negative, [] float (double for double logits); 0 if there
// are none. logits [..., V] in any floating-point type, in the labels' order; labels [...] int64.
// Keeps only the logits for backward, which makes the gradient in their type:
// at::cross_entropy_loss needs two more tensors of their size, in float. The arithmetic is in
// float, or double. A label from V on is torch's error on the CPU; on a GPU the loss and its row of
// the gradient are NaN.
at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& labels);

// How many labels are the class of their largest logit, [] int64 on their device; of equal ones the
// first counts, and a row that has a NaN has none. Does not wait for a GPU.
at::Tensor count_token_hits(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace saturate
