// The kernels of a language model's loss on a GPU, on tensors. They run on the current stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// Whether this build has kernels for such logits: on a GPU, and not double.
bool has_token_kernels(const at::Tensor& logits);

// [rows] float each; see TokenSums (task/token_rows.h).
struct RowSums {
  at::Tensor peaks, log_sums, losses;
};
// logits [rows, V], labels [rows] int64. REQUIRES, as the others: has_token_kernels(logits).
RowSums sum_token_rows(const at::Tensor& logits, const at::Tensor& labels);
// The gradient of the sum of losses times `factors` ([rows] float), as the first columns of a new
// tensor whose rows are as far apart as those of the logits.
at::Tensor token_rows_gradient(const at::Tensor& logits, const at::Tensor& labels,
                               const RowSums& sums, const at::Tensor& factors);
// [rows] uint8: 1 if the label's logit is the largest (TokenSums).
at::Tensor token_row_hits(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace saturate
