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

// Memory for one value of each row. The first three are all null or none. The sum of a row's
// exponentials is exp(peaks) * exp(log_sums). The loss is the logarithm of that sum minus the
// label's logit, 0 if the row does not count, and NaN if its label is no class. A hit is 1 if the
// label's logit is the largest one, and the first of equals; a row that has a NaN has none.
struct TokenSums {
  float* peaks = nullptr;
  float* log_sums = nullptr;
  float* losses = nullptr;
  uint8_t* hits = nullptr;
};

// Enqueue on `stream` (a cudaStream_t) of the current device, whose memory all is. It must live
// until the stream has run them.
void token_sums_cuda(const TokenRows& rows, const TokenSums& to, void* stream);
// Row i of the gradient is (softmax of row i - 1 for its label) * factors[i], NaN if the label is
// no class, in the type and the stride of the logits.
void token_gradient_cuda(const TokenRows& rows, const TokenSums& from, const float* factors,
                         void* gradient, void* stream);

}  // namespace saturate
