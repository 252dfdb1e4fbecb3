// A custom model that a program adds to the models of recipes. module_model.h makes a Model from
// any torch::nn module.
#pragma once

#include <string_view>

#include "saturate/model.h"

namespace saturate {

// Additional public base of a Model whose loss is not the cross entropy of its logits. Training,
// evaluation and the batch search then use this loss.
class OwnLoss {
 public:
  virtual ~OwnLoss() = default;
  // logits [N, classes] float and labels [N] int64, on one device, N above 0, to a scalar: the mean
  // over the N images, since micro-batches and processes are weighted by their images. Without
  // gradients in evaluation.
  virtual at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) = 0;
};

// Adds a row to models(): from now on model.name can be `name`; checkpoints and `recipe.toml` store
// only the name. Both texts must outlive every use, like literals. Fails with kUsage if a model of
// that name exists. To be called before any other use of models(), from one thread.
void add_model(std::string_view name, std::string_view doc, ModelFactory make);

}  // namespace saturate
