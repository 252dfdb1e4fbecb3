// SPDX-License-Identifier: BSD-3-Clause
// Gradient checkpointing: saves memory for time. A checkpointed function keeps only its input for
// backward, which runs the function again to recompute its activations (Chen et al., "Training Deep
// Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174). A chain of N stages in
// sqrt(N) segments needs memory for about 2 sqrt(N) activations instead of N, and one more forward.
//
// In any LibTorch loop, for any torch::nn::Sequential `net`:
//
//   const auto stages = saturate::stages_of(*net);
//   const int64_t segments = saturate::automatic_segments(stages.size());
//   loss(saturate::checkpoint_sequential(stages, segments, images), labels).backward();
//
// Gradients are bit-identical to the plain run: a function's second run sees torch's random state
// (so dropout drops the same), autocast, SyncBatchNorm and its own input as in the first.
// BatchNorm's running statistics are updated once, not twice as with torch.utils.checkpoint: a
// stage lists the tensors that it changes, and after the second run their values are restored.
//
// Limits. A function must not change its input in place (this is refused, for example a split
// before an in-place ReLU), and must be deterministic: other counters or random draws must check
// recomputing(). The gradient of a parameter of several segments may be summed in another order.
// Backward runs within backward (re-entrant in torch): gradients go only to the parameters' grad(),
// so torch::autograd::grad() does not see them, and there are no second derivatives. Without
// gradients (NoGradGuard, inference mode) functions simply run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace saturate {

// A differentiable function of one tensor, with its parameters captured. It runs on the thread that
// calls forward and again on the one that runs backward.
struct Stage {
  std::function<at::Tensor(const at::Tensor&)> forward;
  // Tensors updated in place, such as a BatchNorm's buffers; handles, not copies.
  std::vector<at::Tensor> statistics = {};
  // Not recomputed by checkpoint_sequential() if it comes before all stages that are not kept. For
  // a stage that keeps little memory, or that shares a parameter with a later segment: the
  // gradient of that parameter would come in two parts, which distributed training does not
  // support.
  bool is_kept = false;
};

// stage.forward(input), recomputed in backward. Fails with kRun if it changes its input.
at::Tensor checkpoint(Stage stage, const at::Tensor& input);

// All stages in sequence, in `segments` (at most the number of stages) of nearly equal length,
// which follow the kept ones. All segments but the last are checkpointed: backward begins with that
// one, so keeping its activations is better. 0 or 1: none.
at::Tensor checkpoint_sequential(const std::vector<Stage>& stages, int64_t segments,
                                 const at::Tensor& input);

// The square root of the number of stages, rounded.
int64_t automatic_segments(size_t stages);

// Whether this thread is running a checkpointed function for the second time.
bool recomputing();

// The modules of a torch::nn::SequentialImpl as stages, each with one input tensor. They share the
// modules; to be called once buffers no longer move.
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
