// Gradient checkpointing: memory for time. Of a checkpointed function only the input is kept for
// backward, which runs the function again to have its activations back (Chen et al., "Training Deep
// Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174). A chain of N stages in
// sqrt(N) segments needs memory for about 2 sqrt(N) activations instead of N, and one more forward.
//
// In any LibTorch loop, for any torch::nn::Sequential `net`:
//
//   const auto stages = saturate::stages_of(*net);
//   const int64_t segments = saturate::automatic_segments(stages.size());
//   loss(saturate::checkpoint_sequential(stages, segments, images), labels).backward();
//
// Gradients are those of the plain run, bit for bit: the second run of a function finds torch's
// random state (so dropout drops the same), autocast, SyncBatchNorm and its own input as the first
// did. BatchNorm's running statistics move once, not twice as with torch.utils.checkpoint: a stage
// names the tensors that it changes as it runs, and after the second run they get back the values
// they had before it.
//
// Limits. A function must not change its input in place (it is refused: a split before a ReLU that
// works in place, for instance), and must do the same when it runs again: whatever else it counts
// or draws is to ask recomputing(). A parameter of several segments may have its gradient summed in
// another order. Backward runs within backward (torch calls that re-entrant): gradients go to the
// parameters' grad() alone, so torch::autograd::grad() does not see them, and there are no second
// derivatives. Without a gradient to compute (NoGradGuard, inference mode) functions just run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace saturate {

// A function of one tensor, differentiable, with its parameters captured. It runs on the thread
// that calls forward and again on the one that runs backward.
struct Stage {
  std::function<at::Tensor(const at::Tensor&)> forward;
  // What it updates in place as it runs, such as a BatchNorm's buffers; handles, not copies.
  std::vector<at::Tensor> statistics = {};
};

// stage.forward(input), computed again in backward. Fails with kRun where it changes its input.
at::Tensor checkpoint(Stage stage, const at::Tensor& input);

// All stages one after the other, in `segments` (capped at the number of stages) of as equal length
// as can be. All segments but the last are checkpointed: backward begins with that one, so its
// activations are better kept. 0 or 1: none is.
at::Tensor checkpoint_sequential(const std::vector<Stage>& stages, int64_t segments,
                                 const at::Tensor& input);

// The root of the number of stages, rounded.
int64_t automatic_segments(size_t stages);

// Whether this thread is running a checkpointed function for the second time.
bool recomputing();

// The modules of a torch::nn::SequentialImpl as stages, each of one tensor. They share the modules;
// to be taken once buffers are where they stay.
template <class Sequential>
std::vector<Stage> stages_of(Sequential& sequential) {
  std::vector<Stage> stages;
  for (auto& module : sequential) {
    auto forward = [module](const at::Tensor& input) mutable { return module.forward(input); };
    stages.push_back({std::move(forward), module.ptr()->buffers()});
  }
  return stages;
}

}  // namespace saturate
