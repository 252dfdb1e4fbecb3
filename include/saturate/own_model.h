// A model of a program's own, which its recipes then name like any other. module_model.h makes a
// Model of any torch::nn module.
#pragma once

#include <string_view>

#include "saturate/model.h"

namespace saturate {

// What a Model derives from too, publicly, where its loss is not the cross entropy of its logits.
// Training, evaluation and the batch search then use this one.
class OwnLoss {
 public:
  virtual ~OwnLoss() = default;
  // logits [N, classes] float and labels [N] int64, on one device, N above 0, to a scalar: the mean
  // over the N images, since parts of a batch and processes are weighed by their images. Without a
  // gradient in evaluation.
  virtual at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) = 0;
};

// Adds a row to models(): from here on model.name can be `name`, of which checkpoints and
// `recipe.toml` keep no more than that. Both texts must outlive every use, as literals do. Fails
// with kUsage where there is a model of that name. To be called before anything else uses models(),
// from one thread.
void add_model(std::string_view name, std::string_view doc, ModelFactory make);

}  // namespace saturate
