#include "saturate/gradient_reducer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <utility>

#include "reduce/backends.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kNamed = 5;  // most unused parameters named in an error

// All-reduces a bucket, rounded to `type` for transfer; by default in fp32 or the bucket's type,
// whichever is wider.
class SumHook : public c10d::CommHookInterface {
 public:
  SumHook(Group& group, std::optional<at::ScalarType> type, std::function<void()> sent)
      : group_(group), type_(type), sent_(std::move(sent)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBuffer();
    const auto type = type_.value_or(c10::promoteTypes(buffer.scalar_type(), at::kFloat));
    std::vector<at::Tensor> tensors = {buffer.to(type)};  // the buffer itself if that is its type
    if (tensors[0].is_same(buffer)) share_memory_of(group_, buffer);  // stays there for all steps
    auto future = group_.handle().allreduce(tensors)->getFuture();
    if (bucket.isLast()) sent_();
    return future;
  }

  // The reducer copies the result back into the bucket, and widens it, unless it is the bucket.
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  Group& group_;
  const std::optional<at::ScalarType> type_;
  const std::function<void()> sent_;
};

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

// PowerSGD, algorithm 2 of Vogels et al. 2019 (https://arxiv.org/abs/1905.13727).
//
// The gradient M [n, m] of one parameter, rank r, over W processes, whose gradients are summed:
//   M_own += error                        what earlier steps did not send
//   P = sum over processes (M_own Q)      Q [m, r] of the step before, orthonormal
//   P = orthonormal(P)                    [n, r]
//   Q = sum over processes (M_own^T P)
//   gradient = P Q^T,  error = M_own - gradient / W
//
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

std::unique_ptr<c10d::CommHookInterface> make_hook(Group& group, const DistributedOptions& options,
                                                   const std::vector<at::Tensor>& parameters,
                                                   const std::function<void()>& sent) {
  const auto sum = [&](std::optional<at::ScalarType> type) {
    return std::make_unique<SumHook>(group, type, sent);
  };
  switch (options.compress) {
    case Compress::kBf16:
      return sum(at::kBFloat16);
    case Compress::kFp16:
      return sum(at::kHalf);
    case Compress::kPowerSgd:
      return std::make_unique<PowerSgdHook>(group.handle(), options.powersgd_rank, parameters,
                                            sent);
    case Compress::kNone:
      break;
  }
  return sum(std::nullopt);
}

// Whether both address the same elements in the same memory.
bool are_same_places(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef others) {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && strides[i] != others[i]) return false;
  return true;
}

// A hook that returns a gradient with the parameter's strides. In dimensions of size 1, such as
// those of filters of one pixel, a convolution chooses others, of which c10d's reducer warns.
unsigned add_stride_hook(const at::Tensor& parameter) {
  return parameter.register_hook([sizes = parameter.sizes().vec(),
                                  strides = parameter.strides().vec()](const at::Tensor& gradient) {
    if (!gradient.defined() || gradient.sizes() != sizes || gradient.strides() == strides ||
        !are_same_places(sizes, strides, gradient.strides()))
      return gradient;
    return gradient.as_strided(sizes, strides);
  });
}

// In reverse parameter order: backward fills the last parameters' gradients first.
std::vector<std::vector<size_t>> first_buckets(const std::vector<at::Tensor>& parameters,
                                               size_t bytes) {
  const size_t first = std::min(bytes, size_t(c10d::kDefaultFirstBucketBytes));
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {first, bytes}));
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace

// Names of the parameters that this backward did not reach.
std::string GradientReducer::without_gradient() const {
  std::string names;
  size_t count = 0;
  for (const auto& [name, tensor] : parameters_)
    if (!tensor.grad().defined() && ++count <= kNamed) names += (count > 1 ? ", " : "") + name;
  return count > kNamed ? fmt::format("{} and {} more", names, count - kNamed) : names;
}

// Called by the hook when the last bucket's all-reduce has been started.
void GradientReducer::note_sent() {
  all_sent_ = true;
  if (waiting_ && *waiting_ && std::this_thread::get_id() == caller_) (*waiting_)();
}

// All-reduces what `backward` fills. Unused parameters are searched for in the graph below
// `searched`, if given.
void GradientReducer::run_backward(const std::vector<at::Tensor>& searched,
                                   const std::function<void()>& waiting,
                                   const std::function<void()>& backward) {
  all_sent_ = false;
  caller_ = std::this_thread::get_id();
  waiting_ = &waiting;
  group_.guard("summing gradients", [&] {
    reducer_->prepare_for_backward(searched);
    backward();
  });
  waiting_ = nullptr;
  if (!all_sent_)
    fail(ErrorKind::kUsage, "the loss does not depend on some parameters: " + without_gradient(),
         "model", "Set distributed.find_unused=true, or name them in optimizer.freeze");
}

GradientReducer::GradientReducer(Group& group, const std::vector<NamedTensor>& parameters,
                                 const DistributedOptions& options)
    : group_(group), find_unused_(options.find_unused) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const auto& named : parameters) {
    if (!named.tensor.requires_grad()) continue;
    names[tensors.size()] = named.name;
    tensors.push_back(named.tensor);
    parameters_.push_back(named);
    if (named.tensor.dim() > 1 && std::ranges::count(named.tensor.sizes(), 1) > 0)
      stride_hooks_.emplace_back(named.tensor, add_stride_hook(named.tensor));
  }
  const auto bytes = size_t(options.bucket_mb * (1 << 20));
  group.guard("preparing to sum gradients", [&] {
    reducer_ = std::make_unique<c10d::Reducer>(
        tensors, first_buckets(tensors, bytes),
        c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group.handle()),
        std::vector<bool>(tensors.size(), false), int64_t(bytes), options.find_unused,
        /*gradient_as_bucket_view=*/true, names,
        int64_t(std::min(bytes, size_t(c10d::kDefaultFirstBucketBytes))),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>());
    reducer_->register_comm_hook(make_hook(group, options, tensors, [this] { note_sent(); }));
  });
}

GradientReducer::~GradientReducer() {
  for (const auto& [parameter, hook] : stride_hooks_) parameter.remove_hook(hook);
}

void GradientReducer::before_forward() {
  if (!enabled_) return;
  group_.guard("ordering the buckets of gradients", [&] { reducer_->rebuild_buckets(); });
}

void GradientReducer::backward(const at::Tensor& loss, bool reduce,
                               const std::function<void()>& waiting) {
  if (!loss.requires_grad())
    fail(ErrorKind::kUsage, "the loss requires no gradient", group_.name(),
         find_unused_ ? "Without images, use the sum of the model's outputs for the empty batch"
                      : "Compute it from the model's outputs, or use zero_loss()");
  if (!reduce || !enabled_) {
    loss.backward();
    return;
  }
  std::vector<at::Tensor> searched;
  if (find_unused_) searched.push_back(loss);
  run_backward(searched, waiting, [&] { loss.backward(); });
}

at::Tensor GradientReducer::total(const at::Tensor& own) {
  at::Tensor sum = own.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).view({1});
  if (enabled_) group_.sum(sum);
  return sum.squeeze(0);
}

at::Tensor GradientReducer::zero_loss() const {
  at::Tensor zero = at::zeros({}, at::device(group_.device()).dtype(at::kFloat));
  if (find_unused_) return zero;
  for (const auto& [name, tensor] : parameters_) zero = zero + tensor.sum() * 0;
  return zero;
}

void GradientReducer::sum(const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& gradients) {
  if (!enabled_) {
    torch::autograd::backward(parameters, gradients);
    return;
  }
  std::vector<at::Tensor> searched;  // one tensor above each parameter in the graph
  if (find_unused_)
    for (const auto& parameter : parameters) searched.push_back(parameter.view_as(parameter));
  // Backward from the parameters themselves runs their gradient accumulators and nothing else.
  run_backward(searched, {}, [&] { torch::autograd::backward(parameters, gradients); });
}

}  // namespace saturate
