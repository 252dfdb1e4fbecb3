#include "saturate/gradient_reducer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include "reduce/backends.h"
#include "reduce/power_sgd.h"
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
      return make_power_sgd(group.handle(), options.powersgd_rank, parameters, sent);
    case Compress::kNone:
      break;
  }
  return sum(std::nullopt);
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

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
  if (!enabled_) return;
  group_.guard("ordering the buckets of gradients", [&] { reducer_->rebuild_buckets(); });
}

void GradientReducer::backward(const at::Tensor& loss, bool reduce,
                               const std::function<void()>& waiting) {
  if (!reduce || !enabled_) {
    loss.backward();
    return;
  }
  std::vector<at::Tensor> searched;
  if (find_unused_) searched.push_back(loss);
  run_backward(searched, waiting, [&] { loss.backward(); });
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
