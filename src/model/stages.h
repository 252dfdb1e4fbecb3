// Networks that are a sequence of stages (see gradient_checkpoint.h).
#pragma once

#include <torch/nn/module.h>

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
  // `modules` (holders): its modules with buffers.
  template <class... Modules>
  void add_stage(std::function<at::Tensor(const at::Tensor&)> forward, const Modules&... modules) {
    Stage stage{std::move(forward)};
    for (const auto& buffers : {std::vector<at::Tensor>(), modules->buffers()...})
      stage.statistics.insert(stage.statistics.end(), buffers.begin(), buffers.end());
    stages_.push_back(std::move(stage));
  }

 private:
  std::vector<Stage> stages_;
};

}  // namespace saturate
