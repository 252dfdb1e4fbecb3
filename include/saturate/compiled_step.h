// A step compiled ahead of time: forward and backward as one machine-code function over the model's
// live parameters, made by tools/compile_step.py with torch.export and torch's Inductor. No Python
// runs here. docs/compiled_step.md tells how to make a package, and what is in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "saturate/model.h"
#include "saturate/recipe.h"

namespace saturate {

class Env;

// Not for concurrent use.
class CompiledStep {
 public:
  // Loads the package that recipe.train.compiled names, for `model`, which must outlive this; its
  // parameters and buffers may be changed in place, but not replaced, from here on. `recipe` is a
  // resolved one, whose batches `processes` share out, of which this is one. Fails with kUsage,
  // naming all that differs and how to make the right package, where it was made for other
  // settings, another torch, another processor or another model, and where it is broken or not
  // there. Nothing is written to disk.
  // REQUIRES: the model is on its device, and its frozen parameters require no gradient.
  CompiledStep(Env& env, const Recipe& recipe, Model& model, int processes = 1);
  ~CompiledStep();

  // Images of a part that run() takes.
  int part() const;

  struct Output {
    at::Tensor loss;                    // the mean over the part
    at::Tensor logits;                  // [part, classes] float
    std::vector<at::Tensor> gradients;  // of loss * factor, one for each of trained()
  };
  // Forward and backward of loss * factor, which also updates BatchNorm's statistics. `factor`: a
  // float scalar beside the images; it may be written later. The first call also compares the loss
  // with that of the model itself, and fails with kUsage where the package computes something else.
  Output run(const at::Tensor& images, const at::Tensor& labels, const at::Tensor& factor);

  // The parameters that require a gradient. Two of their gradients may be one piece of memory.
  const std::vector<at::Tensor>& trained() const;
  // Adds the gradients to those that the parameters hold.
  void add_gradients(Output output);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
