// Optimizers over LibTorch's fused operators (at::_fused_sgd_, at::_fused_adamw_): one call updates
// all parameters of a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "saturate/model.h"
#include "saturate/recipe.h"
#include "saturate/registry.h"

namespace saturate {

// Parameters that share a weight decay.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  double weight_decay = 0;
};

// Groups parameters by what applies to them, groups and members in the order of `parameters`.
// Unless decay_norm_and_bias, parameters of one dimension or none (biases, BatchNorm's weights) do
// not decay.
std::vector<ParameterGroup> make_parameter_groups(const OptimizerOptions& options,
                                                  const std::vector<NamedTensor>& parameters);

// Not for concurrent use. Parameters without a gradient are left alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every parameter that has a gradient, in place, without synchronising with a device.
  virtual void step(double lr) = 0;
  // Drops the gradients (sets them to none).
  virtual void zero_grad() = 0;
  // Everything needed to continue, named "PARAMETER.momentum" and the like; shares storage.
  virtual std::vector<NamedTensor> state() = 0;
  // Takes what state() gave. Fails with kRun on a tensor that is missing, unknown or of another
  // shape.
  virtual void load_state(const std::vector<NamedTensor>& state) = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups);

using OptimizerFactory = std::unique_ptr<Optimizer> (*)(const OptimizerOptions&,
                                                        std::vector<ParameterGroup>);
std::span<const RegistryEntry<OptimizerFactory>> optimizers();

}  // namespace saturate
