#include "saturate/gradient_checkpoint.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "model/autograd.h"
#include "model/random_state.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local bool is_recomputing = false;

// Restores this thread's state of a function's first run for a scope.
class SecondRun {
 public:
  SecondRun(RandomState& random, const AutocastState& autocast, const Stage& stage,
            const at::Device& device)
      : statistics_(stage.statistics),
        random_before_(device),
        autocast_before_(device.type()),
        recomputing_before_(std::exchange(is_recomputing, true)) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : statistics_) values_.push_back(tensor.clone());
    random.restore();
    at::autocast::clear_cache();
    autocast.apply();
  }
  ~SecondRun() {
    // Cached casts belong to the graph that backward is about to free.
    at::autocast::clear_cache();
    // BatchNorm's backward saves its running statistics without using them: below autograd the copy
    // does not count as an in-place change.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i = 0; i < statistics_.size(); ++i) statistics_[i].copy_(values_[i]);
    is_recomputing = recomputing_before_;
  }

 private:
  const std::vector<at::Tensor>& statistics_;
  std::vector<at::Tensor> values_;
  RandomStateScope random_before_;
  AutocastStateScope autocast_before_;
  bool recomputing_before_;
};

// The autograd node of a checkpointed function: one input, one output.
class CheckpointNode : public Node {
 public:
  CheckpointNode(Stage stage, const at::Tensor& input)
      : Node(torch::autograd::collect_next_edges(input)),
        stage_(std::move(stage)),
        input_(input, /*is_output=*/false),
        device_(input.device()),
        random_(device_),
        autocast_(device_.type()) {}

  std::string name() const override { return "GradientCheckpoint"; }

  at::Tensor first_run(const at::Tensor& input) {
    const auto version = [&] { return input.is_inference() ? 0 : input._version(); };
    const auto version_before = version();
    at::Tensor output;
    {
      const at::NoGradGuard no_grad;
      // Weights cast without gradients must not be reused later.
      const AutocastStateScope autocast(device_.type());
      at::autocast::set_autocast_cache_enabled(false);
      output = stage_.forward(input.detach());
    }
    if (version() != version_before)
      fail(ErrorKind::kRun, "a checkpointed function changes its input in place",
           "gradient checkpointing",
           "Let it work on a copy, or choose other segments (train.checkpoint_segments)");
    return output.detach();  // not a view created without gradients, which must not be changed in
                             // place
  }

  void release_variables() override { input_.reset_data(); }

 protected:
  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled())
      fail(ErrorKind::kRun, "a checkpointed function has no second derivative",
           "gradient checkpointing", "Call backward without create_graph");
    if (!gradients.at(0).defined()) return {at::Tensor()};
    at::Tensor input = input_.unpack().detach();
    input.requires_grad_(task_should_compute_output(0));
    {
      const at::AutoGradMode with_gradients(true);
      const at::Tensor output = second_run(input);
      // False if everything in it is frozen.
      if (output.requires_grad()) torch::autograd::backward({output}, {std::move(gradients[0])});
    }
    return {std::move(input.mutable_grad())};
  }

 private:
  at::Tensor second_run(const at::Tensor& input) {
    const SecondRun scope(random_, autocast_, stage_, device_);
    return stage_.forward(input);
  }

  Stage stage_;
  torch::autograd::SavedVariable input_;
  at::Device device_;
  RandomState random_;  // before the first run
  AutocastState autocast_;
};

// Merges the stages in [begin, end).
Stage joined(const std::vector<Stage>& stages, size_t begin, size_t end) {
  const std::vector<Stage> parts(stages.begin() + ptrdiff_t(begin),
                                 stages.begin() + ptrdiff_t(end));
  Stage segment{[parts](const at::Tensor& input) {
    at::Tensor x = input;
    for (const Stage& part : parts) x = part.forward(x);
    return x;
  }};
  for (const Stage& part : parts)
    segment.statistics.insert(segment.statistics.end(), part.statistics.begin(),
                              part.statistics.end());
  return segment;
}

}  // namespace

bool recomputing() {
  return is_recomputing;
}

int64_t automatic_segments(size_t stages) {
  return std::llround(std::sqrt(double(stages)));
}

at::Tensor checkpoint(Stage stage, const at::Tensor& input) {
  if (!at::GradMode::is_enabled()) return stage.forward(input);
  const auto node = make_graph_node<CheckpointNode>(std::move(stage), input);
  at::Tensor output = node->first_run(input);
  torch::autograd::set_history(output, node);
  return output;
}

at::Tensor checkpoint_sequential(const std::vector<Stage>& stages, int64_t segments,
                                 const at::Tensor& input) {
  const auto first = std::ranges::find(stages, false, &Stage::is_kept);
  at::Tensor x = input;
  for (auto kept = stages.begin(); kept != first; ++kept) x = kept->forward(x);
  const size_t before = size_t(first - stages.begin()), others = stages.size() - before;
  const size_t count =
      std::clamp<size_t>(size_t(std::max<int64_t>(segments, 1)), 1, std::max<size_t>(others, 1));
  const auto begin = [&](size_t segment) { return before + segment * others / count; };
  for (size_t i = 0; i + 1 < count; ++i) x = checkpoint(joined(stages, begin(i), begin(i + 1)), x);
  for (size_t i = begin(count - 1); i < stages.size(); ++i) x = stages[i].forward(x);
  return x;
}

}  // namespace saturate
