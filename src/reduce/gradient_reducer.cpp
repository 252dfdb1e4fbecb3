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

// State that backward's hooks report to the caller.
struct SendProgress {
  bool all_sent = false;
  std::thread::id caller;
  const std::function<void()>* waiting = nullptr;
};

// To be called when the last bucket's all-reduce has been started.
void note_sent(SendProgress& progress) {
  progress.all_sent = true;
  if (progress.waiting && *progress.waiting && std::this_thread::get_id() == progress.caller)
    (*progress.waiting)();
}

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
                                                   SendProgress& progress) {
  auto sent = [&progress] { note_sent(progress); };
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

struct GradientReducer::State {
  Group& group;
  bool find_unused;
  bool enabled = true;
  std::vector<NamedTensor> parameters;
  SendProgress progress;
  std::unique_ptr<c10d::Reducer> reducer;

  // All-reduces what `backward` fills. Unused parameters are searched for in the graph below
  // `searched`, if given.
  void reduce(const std::vector<at::Tensor>& searched, const std::function<void()>& waiting,
              const std::function<void()>& backward);
  // Names of the parameters that this backward did not reach.
  std::string without_gradient() const {
    std::string names;
    size_t count = 0;
    for (const auto& [name, tensor] : parameters)
      if (!tensor.grad().defined() && ++count <= kNamed) names += (count > 1 ? ", " : "") + name;
    return count > kNamed ? fmt::format("{} and {} more", names, count - kNamed) : names;
  }
};

void GradientReducer::State::reduce(const std::vector<at::Tensor>& searched,
                                    const std::function<void()>& waiting,
                                    const std::function<void()>& backward) {
  progress = {false, std::this_thread::get_id(), &waiting};
  group.guard("summing gradients", [&] {
    reducer->prepare_for_backward(searched);
    backward();
  });
  progress.waiting = nullptr;
  if (!progress.all_sent)
    fail(ErrorKind::kUsage, "parameters take no part in the loss: " + without_gradient(), "model",
         "Set distributed.find_unused=true, or name them in optimizer.freeze");
}

GradientReducer::GradientReducer(Group& group, const std::vector<NamedTensor>& parameters,
                                 const DistributedOptions& options)
    : state_(new State{group, options.find_unused, true, {}, {}, nullptr}) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const auto& named : parameters) {
    if (!named.tensor.requires_grad()) continue;
    names[tensors.size()] = named.name;
    tensors.push_back(named.tensor);
    state_->parameters.push_back(named);
  }
  const auto bytes = size_t(options.bucket_mb * (1 << 20));
  group.guard("preparing to sum gradients", [&] {
    state_->reducer = std::make_unique<c10d::Reducer>(
        tensors, first_buckets(tensors, bytes),
        c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group.handle()),
        std::vector<bool>(tensors.size(), false), int64_t(bytes), options.find_unused,
        /*gradient_as_bucket_view=*/true, names,
        int64_t(std::min(bytes, size_t(c10d::kDefaultFirstBucketBytes))),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>());
    state_->reducer->register_comm_hook(make_hook(group, options, tensors, state_->progress));
  });
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::set_enabled(bool enabled) {
  state_->enabled = enabled;
}

void GradientReducer::before_forward() {
  if (!state_->enabled) return;
  state_->group.guard("ordering the buckets of gradients",
                      [&] { state_->reducer->rebuild_buckets(); });
}

void GradientReducer::backward(const at::Tensor& loss, bool reduce,
                               const std::function<void()>& waiting) {
  if (!reduce || !state_->enabled) {
    loss.backward();
    return;
  }
  std::vector<at::Tensor> searched;
  if (state_->find_unused) searched.push_back(loss);
  state_->reduce(searched, waiting, [&] { loss.backward(); });
}

at::Tensor GradientReducer::zero_loss() const {
  at::Tensor zero = at::zeros({}, at::device(state_->group.device()).dtype(at::kFloat));
  if (state_->find_unused) return zero;
  for (const auto& [name, tensor] : state_->parameters) zero = zero + tensor.sum() * 0;
  return zero;
}

void GradientReducer::sum(const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& gradients) {
  if (!state_->enabled) {
    torch::autograd::backward(parameters, gradients);
    return;
  }
  std::vector<at::Tensor> searched;  // one tensor above each parameter in the graph
  if (state_->find_unused)
    for (const auto& parameter : parameters) searched.push_back(parameter.view_as(parameter));
  // Backward from the parameters themselves runs their gradient accumulators and nothing else.
  state_->reduce(searched, {}, [&] { torch::autograd::backward(parameters, gradients); });
}

}  // namespace saturate
