// A step compiled ahead of time: forward and backward as one machine-code function of the model's
// live parameters, made by tools/compile_step.py with torch.export and Inductor. Runs without
// Python. docs/compiled_step.md explains how to make a package, and its contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/model.h"
#include "saturate/task.h"

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace saturate {

// Not for concurrent use.
class CompiledStep {
 public:
  // Loads the package of recipe.train.compiled for `model`, which must outlive this; from then on
  // its parameters and buffers may be changed in place, but not replaced. `recipe` is resolved;
  // `processes`, including this one, split its global batches. Fails with kUsage if the package is
  // missing or broken, or was made for other settings, another torch, processor or model, naming
  // all differences and how to make the right package. Writes nothing to disk. REQUIRES: the model
  // is on its device, and its frozen parameters require no gradient.
  CompiledStep(Env& env, const Recipe& recipe, Model& model, int processes = 1);
  ~CompiledStep();

  // Samples of a micro-batch of run().
  int micro_batch() const { return micro_batch_; }

  struct Output {
    at::Tensor loss;                    // Task::mean_loss() of the micro-batch
    at::Tensor logits;                  // the model's outputs, float
    std::vector<at::Tensor> gradients;  // of loss * factor, one for each of trained()
  };
  // Forward and backward of loss * factor, which also updates BatchNorm's statistics. `factor`: a
  // float scalar on the images' device, which may be written later. The first call also compares
  // shapes and types with the package's, and the loss with the model's own; it fails with kUsage if
  // they differ.
  Output run(const at::Tensor& images, const at::Tensor& labels, const at::Tensor& factor);

  // The parameters that require a gradient. Two of their gradients may share memory.
  const std::vector<at::Tensor>& trained() const { return trained_; }
  // Adds the gradients to the parameters' own.
  void add_gradients(Output output);

 private:
  void require_shapes(const at::Tensor& images, const at::Tensor& labels) const;
  // The loss as the model itself computes it; leaves the model unchanged.
  double eager_loss(const at::Tensor& images, const at::Tensor& labels);
  void require_loss(double expected, double found) const;

  const Recipe recipe_;
  const std::string path_;
  Model& model_;
  std::unique_ptr<const Task> task_;
  nlohmann::json input_, target_;  // shape and type of a sample's tensors; null of images
  int micro_batch_ = 0;
  std::vector<at::Tensor> trained_;
  std::vector<size_t> gradients_;  // their indices among the library's outputs
  size_t outputs_;                 // number of the library's outputs
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
  bool checked_ = false;
};

}  // namespace saturate
