// Networks that are a sequence of stages (see gradient_checkpoint.h).
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>

#include <functional>
#include <utility>
#include <vector>

#include "saturate/gradient_checkpoint.h"

namespace saturate {

// forward() runs the stages in the order in which they were added.
class Chain : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = images;
    for (const Stage& stage : stages_) x = stage.forward(x);
    return x;
  }
  const std::vector<Stage>& stages() const { return stages_; }

 protected:
  // `modules` (holders): those of the stage that have buffers.
  template <class... Modules>
  void add_stage(std::function<at::Tensor(const at::Tensor&)> forward, const Modules&... modules) {
    Stage stage{std::move(forward)};
    for (const auto& buffers : {std::vector<at::Tensor>(), modules->buffers()...})
      stage.statistics.insert(stage.statistics.end(), buffers.begin(), buffers.end());
    stages_.push_back(std::move(stage));
  }

  // Adds a stage that is never recomputed. It must come before those that are.
  void add_kept_stage(std::function<at::Tensor(const at::Tensor&)> forward) {
    stages_.push_back({std::move(forward), {}, /*is_kept=*/true});
  }

  // A module (a holder) that is a stage.
  template <class Module>
  void add_module_stage(Module module) {
    add_stage([module](const at::Tensor& x) mutable { return module(x); }, module);
  }

  // As torchvision does. BatchNorm starts at weight 1 and bias 0 already.
  void initialise_convolutions() {
    // Excluding itself: it has no shared_ptr yet.
    for (const auto& module : modules(/*include_self=*/false)) {
      const auto draw = [](const at::Tensor& weight) {
        torch::nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
      };
      if (auto* image = module->as<torch::nn::Conv2d>()) draw(image->weight);
      if (auto* signal = module->as<torch::nn::Conv1d>()) draw(signal->weight);
    }
  }

 private:
  std::vector<Stage> stages_;
};

}  // namespace saturate
