// Rows of a language model's logits on a GPU, as the kernels of its loss take them.
#pragma once

#include <cstdint>

namespace saturate {

enum class LogitType { kFloat32, kFloat16, kBfloat16 };

struct TokenRows {
  const void* logits = nullptr;     // `count` rows of `classes` values
  const int64_t* labels = nullptr;  // [count]; negative: the row does not count
  int64_t count = 0;
  int64_t stride = 0;  // values from one row to the next
  int classes = 0;
  LogitType type = LogitType::kFloat32;
};

// One value of each row is written to those that are not null; the first three go together. The sum
// of a row's exponentials is exp(peaks) * exp(log_sums), and the loss log(that sum) minus the
// label's logit: 0 if the row does not count, and NaN if its label is no class. A hit is 1: the
// label's logit is the largest one, and the first of equals; a NaN is larger than all.
struct TokenSums {
  float* peaks = nullptr;
  float* log_sums = nullptr;
  float* losses = nullptr;
  uint8_t* hits = nullptr;
};

// Enqueue on `stream` (a cudaStream_t). All memory is the device's, and must live until then.
void token_sums_cuda(const TokenRows& rows, const TokenSums& to, void* stream);
// gradient[i] = (softmax of row i - 1 for its label) * factors[i], in the logits' type and stride.
void token_gradient_cuda(const TokenRows& rows, const TokenSums& from, const float* factors,
                         void* gradient, void* stream);

}  // namespace saturate
