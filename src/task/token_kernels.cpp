#include "task/token_kernels.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef SATURATE_HAS_CUDA
#include "task/token_rows.h"
#else
#include "saturate/data/error.h"
#endif

namespace saturate {

#ifdef SATURATE_HAS_CUDA

namespace {

void* current_stream(const at::Tensor& on) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(on.device()).native_handle();
}

// Rows whose values are side by side, with a small gap at most: the tensor itself, or a copy.
at::Tensor in_rows(const at::Tensor& logits) {
  constexpr int64_t kMostGap = 128;
  const int64_t gap = logits.stride(0) - logits.size(1);
  return logits.stride(1) == 1 && gap >= 0 && gap <= kMostGap ? logits : logits.contiguous();
}

// `rows` are in_rows(). The result must not outlive both.
TokenRows view_rows(const at::Tensor& rows, const at::Tensor& labels) {
  TORCH_CHECK(
      labels.is_contiguous() && labels.device() == rows.device() && labels.numel() == rows.size(0),
      "labels ", labels.sizes(), " on ", labels.device(), " for logits ", rows.sizes(), " on ",
      rows.device());
  return {.logits = rows.const_data_ptr(),
          .labels = labels.const_data_ptr<int64_t>(),
          .count = rows.size(0),
          .stride = rows.stride(0),
          .classes = static_cast<int>(rows.size(1)),
          .type = rows.scalar_type() == at::kBFloat16 ? LogitType::kBfloat16
                  : rows.scalar_type() == at::kHalf   ? LogitType::kFloat16
                                                      : LogitType::kFloat32};
}

}  // namespace

bool has_token_kernels(const at::Tensor& logits) {
  return logits.is_cuda() &&
         (logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kHalf ||
          logits.scalar_type() == at::kBFloat16);
}

RowSums sum_token_rows(const at::Tensor& logits, const at::Tensor& labels) {
  const c10::DeviceGuard guard(logits.device());
  const at::Tensor rows = in_rows(logits), classes = labels.contiguous();
  const auto floats = [&] { return at::empty({rows.size(0)}, rows.options().dtype(at::kFloat)); };
  RowSums sums{floats(), floats(), floats()};
  token_sums_cuda(view_rows(rows, classes),
                  {.peaks = sums.peaks.mutable_data_ptr<float>(),
                   .log_sums = sums.log_sums.mutable_data_ptr<float>(),
                   .losses = sums.losses.mutable_data_ptr<float>()},
                  current_stream(rows));
  return sums;
}

at::Tensor token_rows_gradient(const at::Tensor& logits, const at::Tensor& labels,
                               const RowSums& sums, const at::Tensor& factors) {
  const c10::DeviceGuard guard(logits.device());
  const at::Tensor rows = in_rows(logits), classes = labels.contiguous();
  const at::Tensor by = factors.contiguous();
  // The last row has the memory of a whole one too: see padded_linear().
  at::Tensor gradient =
      at::empty({rows.size(0), rows.stride(0)}, rows.options()).narrow(1, 0, rows.size(1));
  token_gradient_cuda(view_rows(rows, classes),
                      {.peaks = sums.peaks.mutable_data_ptr<float>(),
                       .log_sums = sums.log_sums.mutable_data_ptr<float>()},
                      by.const_data_ptr<float>(), gradient.mutable_data_ptr(),
                      current_stream(rows));
  return gradient;
}

at::Tensor token_row_hits(const at::Tensor& logits, const at::Tensor& labels) {
  const c10::DeviceGuard guard(logits.device());
  const at::Tensor rows = in_rows(logits), classes = labels.contiguous();
  at::Tensor hits = at::empty({rows.size(0)}, rows.options().dtype(at::kByte));
  token_sums_cuda(view_rows(rows, classes), {.hits = hits.mutable_data_ptr<uint8_t>()},
                  current_stream(rows));
  return hits;
}

#else

namespace {

[[noreturn]] void fail_without_kernels() {
  fail(ErrorKind::kRun, "this build has no kernels of the token loss", "token_kernels",
       "Ask has_token_kernels()");
}

}  // namespace

bool has_token_kernels(const at::Tensor&) {
  return false;
}
RowSums sum_token_rows(const at::Tensor&, const at::Tensor&) {
  fail_without_kernels();
}
at::Tensor token_rows_gradient(const at::Tensor&, const at::Tensor&, const RowSums&,
                               const at::Tensor&) {
  fail_without_kernels();
}
at::Tensor token_row_hits(const at::Tensor&, const at::Tensor&) {
  fail_without_kernels();
}

#endif

}  // namespace saturate
