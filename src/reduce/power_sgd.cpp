// PowerSGD, algorithm 2 of Vogels et al. 2019 (https://arxiv.org/abs/1905.13727).
//
// The gradient M [n, m] of one parameter, rank r, over W processes, whose gradients are summed:
//   M_own += error                        what earlier steps did not send
//   P = sum over processes (M_own Q)      Q [m, r] of the step before, orthonormal
//   P = orthonormal(P)                    [n, r]
//   Q = sum over processes (M_own^T P)
//   gradient = P Q^T,  error = M_own - gradient / W
#include "reduce/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
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

// Starts the first all-reduces as backward fills the buckets, and the second ones, which need the
// first ones' results, after backward: all processes make the same calls in the same order, which
// Gloo requires. 1-dimensional parameters, and those that a low-rank product would not at least
// halve, are all-reduced as they are.
class PowerSgdHook : public c10d::CommHookInterface {
 public:
  PowerSgdHook(c10d::ProcessGroup& group, int rank, const std::vector<at::Tensor>& parameters,
               std::function<void()> sent)
      : group_(group), rank_(rank), sent_(std::move(sent)) {
    for (const at::Tensor& parameter : parameters)
      indices_.emplace(parameter.unsafeGetTensorImpl(), indices_.size());
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::NoGradGuard no_grad;
    if (bucket.getIndex() == 0) pending_.clear();
    Pending& pending = pending_.emplace_back();
    pending.buffer = bucket.getBuffer();
    const auto gradients = bucket.getGradients();
    const auto& parameters = bucket.getParameters();
    std::vector<at::Tensor> pieces;
    for (size_t i = 0; i < gradients.size(); ++i) {
      Matrix* const matrix = matrix_of(parameters[i], gradients[i]);
      if (!matrix) {
        pending.uncompressed.push_back(gradients[i]);
        continue;
      }
      pending.matrices.push_back(matrix);
      matrix->error.add_(matrix->gradient);
      matrix->p = at::matmul(matrix->error, orthonormal(matrix->q));
      pieces.push_back(matrix->p.flatten());
    }
    for (const at::Tensor& gradient : pending.uncompressed)
      pieces.push_back(gradient.flatten().to(at::kFloat));
    send(pending, pieces);
    if (bucket.isLast()) sent_();
    // The reducer waits for the buckets in this order, in parseHookResult().
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(int64_t(bucket.getIndex()));
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    const at::NoGradGuard no_grad;
    const auto index = size_t(result.toInt());
    if (index == 0)
      for (Pending& bucket : pending_) send_second(bucket);
    finish(pending_.at(index));
    return pending_[index].buffer;
  }

 private:
  struct Matrix {
    at::Tensor error;     // [n, m] float; M_own during a step
    at::Tensor p, q;      // [n, r], [m, r] float
    at::Tensor gradient;  // [n, m], in its bucket
  };
  struct Pending {  // a bucket in flight
    at::Tensor buffer;
    std::vector<Matrix*> matrices;
    std::vector<at::Tensor> uncompressed;  // gradients, in the bucket
    at::Tensor sum;                        // flat buffer being all-reduced
    c10::intrusive_ptr<c10d::Work> work;
  };

  Matrix* matrix_of(const at::Tensor& parameter, const at::Tensor& gradient) {
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
      const auto random = at::make_generator<at::CPUGeneratorImpl>(indices_.at(key));
      matrix.error = at::zeros({rows, columns}, options);
      matrix.q = at::randn({columns, rank}, random, at::kFloat).to(gradient.device());
    }
    return &matrix;
  }

  void send(Pending& bucket, const std::vector<at::Tensor>& pieces) {
    bucket.sum = at::cat(pieces);
    std::vector<at::Tensor> tensors = {bucket.sum};
    bucket.work = group_.allreduce(tensors);
  }

  void send_second(Pending& bucket) {
    bucket.work->wait();
    Cutter summed(bucket.sum);
    std::vector<at::Tensor> pieces;
    for (Matrix* const matrix : bucket.matrices) {
      matrix->p = orthonormal(summed.next(matrix->p.sizes()));
      pieces.push_back(at::matmul(matrix->error.t(), matrix->p).flatten());
    }
    for (const at::Tensor& gradient : bucket.uncompressed)
      gradient.copy_(summed.next(gradient.sizes()));
    if (!pieces.empty()) send(bucket, pieces);
  }

  void finish(Pending& bucket) {
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

  c10d::ProcessGroup& group_;
  const int64_t rank_;
  const std::function<void()> sent_;
  std::unordered_map<const void*, uint64_t> indices_;  // index of each parameter
  std::unordered_map<const void*, Matrix> matrices_;
  std::deque<Pending> pending_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_power_sgd(c10d::ProcessGroup& group, int rank,
                                                        const std::vector<at::Tensor>& parameters,
                                                        std::function<void()> sent) {
  return std::make_unique<PowerSgdHook>(group, rank, parameters, std::move(sent));
}

}  // namespace saturate
