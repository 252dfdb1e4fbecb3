#include "reduce/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace saturate {
namespace {

constexpr int64_t kLeastGain = 2;  // minimum compression ratio, as torch's powerSGD_hook

// Also defined for a zero matrix.
at::Tensor orthonormal(const at::Tensor& matrix) {
  return std::get<0>(at::linalg_qr(matrix, "reduced"));
}

// Splits a flat tensor into consecutive tensors of given shapes.
class Cutter {
 public:
  explicit Cutter(at::Tensor flat) : flat_(std::move(flat)) {}
  at::Tensor next(at::IntArrayRef shape) {
    const int64_t count = c10::multiply_integers(shape);
    return flat_.narrow(0, std::exchange(at_, at_ + count), count).view(shape);
  }

 private:
  at::Tensor flat_;
  int64_t at_ = 0;
};

}  // namespace

PowerSgdHook::PowerSgdHook(c10d::ProcessGroup& group, int rank,
                           const std::vector<at::Tensor>& parameters, std::function<void()> sent)
    : group_(group), rank_(rank), sent_(std::move(sent)) {
  for (const at::Tensor& parameter : parameters)
    places_.emplace(parameter.unsafeGetTensorImpl(), places_.size());
}

PowerSgdHook::Matrix* PowerSgdHook::matrix_of(const at::Tensor& parameter,
                                              const at::Tensor& gradient) {
  if (gradient.dim() < 2) return nullptr;
  const int64_t rows = gradient.size(0), columns = gradient.numel() / rows;
  const int64_t rank = std::min({rows, columns, rank_});
  if ((rows + columns) * rank * kLeastGain >= rows * columns) return nullptr;
  const void* const key = parameter.unsafeGetTensorImpl();
  Matrix& matrix = matrices_[key];
  matrix.gradient = gradient.view({rows, columns});
  if (!matrix.error.defined()) {
    const auto options = gradient.options().dtype(at::kFloat);
    // The same seed on all processes.
    const auto random = at::make_generator<at::CPUGeneratorImpl>(places_.at(key));
    matrix.error = at::zeros({rows, columns}, options);
    matrix.q = at::randn({columns, rank}, random, at::kFloat).to(gradient.device());
  }
  return &matrix;
}

void PowerSgdHook::send(Pending& bucket, const std::vector<at::Tensor>& parts) {
  bucket.sum = at::cat(parts);
  std::vector<at::Tensor> tensors = {bucket.sum};
  bucket.work = group_.allreduce(tensors);
}

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  if (bucket.getIndex() == 0) pending_.clear();
  Pending& pending = pending_.emplace_back();
  pending.buffer = bucket.getBuffer();
  const auto gradients = bucket.getGradients();
  const auto& parameters = bucket.getParameters();
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Matrix* const matrix = matrix_of(parameters[i], gradients[i]);
    if (!matrix) {
      pending.whole.push_back(gradients[i]);
      continue;
    }
    pending.matrices.push_back(matrix);
    matrix->error.add_(matrix->gradient);
    matrix->p = at::matmul(matrix->error, orthonormal(matrix->q));
    parts.push_back(matrix->p.flatten());
  }
  for (const at::Tensor& gradient : pending.whole)
    parts.push_back(gradient.flatten().to(at::kFloat));
  send(pending, parts);
  if (bucket.isLast()) sent_();
  // The reducer waits for the buckets in this order, in parseHookResult().
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->markCompleted(int64_t(bucket.getIndex()));
  return future;
}

void PowerSgdHook::send_second(Pending& bucket) {
  bucket.work->wait();
  Cutter summed(bucket.sum);
  std::vector<at::Tensor> parts;
  for (Matrix* const matrix : bucket.matrices) {
    matrix->p = orthonormal(summed.next(matrix->p.sizes()));
    parts.push_back(at::matmul(matrix->error.t(), matrix->p).flatten());
  }
  for (const at::Tensor& gradient : bucket.whole) gradient.copy_(summed.next(gradient.sizes()));
  if (!parts.empty()) send(bucket, parts);
}

void PowerSgdHook::finish(Pending& bucket) {
  if (bucket.matrices.empty()) return;
  bucket.work->wait();
  Cutter summed(bucket.sum);
  for (Matrix* const matrix : bucket.matrices) {
    matrix->q = summed.next(matrix->q.sizes()).clone();
    const at::Tensor product = at::matmul(matrix->p, matrix->q.t());
    matrix->gradient.copy_(product);
    matrix->error.sub_(product, 1.0 / group_.getSize());
  }
}

at::Tensor PowerSgdHook::parseHookResult(const c10::IValue& result) {
  const at::NoGradGuard no_grad;
  const auto index = size_t(result.toInt());
  if (index == 0)
    for (Pending& bucket : pending_) send_second(bucket);
  finish(pending_.at(index));
  return pending_[index].buffer;
}

}  // namespace saturate
