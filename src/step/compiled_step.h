// A step compiled ahead of time: forward and backward as one machine-code function of the model's
// live parameters, made by tools/compile_step.py with torch.export and Inductor. Runs without
// Python. docs/compiled_step.md explains how to make a package, and its contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

class Env;

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

  // Images of a micro-batch of run().
  int part() const;

  struct Output {
    at::Tensor loss;                    // the mean over the micro-batch
    at::Tensor logits;                  // [part, classes] float
    std::vector<at::Tensor> gradients;  // of loss * factor, one for each of trained()
  };
  // Forward and backward of loss * factor, which also updates BatchNorm's statistics. `factor`: a
  // float scalar on the images' device, which may be written later. The first call also compares
  // the loss with the model's own, and fails with kUsage if they differ.
  Output run(const at::Tensor& images, const at::Tensor& labels, const at::Tensor& factor);

  // The parameters that require a gradient. Two of their gradients may share memory.
  const std::vector<at::Tensor>& trained() const;
  // Adds the gradients to the parameters' own.
  void add_gradients(Output output);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
