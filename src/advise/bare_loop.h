// The least that a step of LibTorch can be: what the hardware gives.
#pragma once

#include <memory>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/feed.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"

namespace saturate {

// Model, loss, backward and one fused optimizer call over all parameters, on one batch: no loader,
// no metrics, no clock, no loss scaling, no clipping. Optimizers without a fused operator, and
// those with fp32 masters, are the recipe's own.
class BareLoop {
 public:
  // `recipe`: resolved. `batch`: on the recipe's device.
  BareLoop(Env& env, const Recipe& recipe, const DeviceBatch& batch);
  void step();
  int64_t images() const { return count_; }  // in a step

 private:
  void forward_backward(const at::Tensor& images, const at::Tensor& labels, double share);
  void update();
  void fused_update();

  const Recipe recipe_;
  std::vector<DeviceBatch> parts_;  // as many as train.accumulate asks for
  int64_t count_;                   // images in all of them
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> own_;  // where no fused operator will do
  std::vector<at::Tensor> parameters_, gradients_, first_, second_, counts_;
};

}  // namespace saturate
