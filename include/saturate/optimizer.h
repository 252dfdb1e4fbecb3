// Optimizers: SGD, Adam and AdamW are LibTorch's fused operators (one call updates all parameters
// of a group; with optimizer.fused=false one operator after another), the others are made of
// at::_foreach_* operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "saturate/model.h"
#include "saturate/registry.h"
#include "saturate/step_options.h"

namespace saturate {

// Parameters that are treated alike.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  double weight_decay = 0;
  double lr_factor = 1;  // on the learning rate of a step
};

// Groups parameters by what applies to them, groups and members in the order of `parameters`.
// Unless decay_norm_and_bias, parameters of one dimension or none (biases, BatchNorm's weights) do
// not decay. Those that optimizer.freeze names are in no group, and require no gradient from here
// on; those that their model keeps fixed, which require none, are in no group either. Fails with
// kUsage on a pattern that matches nothing, and where nothing is left to train.
std::vector<ParameterGroup> make_parameter_groups(const OptimizerOptions& options,
                                                  const std::vector<NamedTensor>& parameters);

// Not for concurrent use. Parameters without a gradient are left alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // To be called after each backward: takes over the gradients where they are not summed in the
  // parameters themselves.
  virtual void take_gradients() {}
  // Updates every parameter that has a gradient, in place, without synchronising with a device.
  // `found_inf`: a float scalar beside the parameters (see grad_scaler.h); where it is 1,
  // parameters and state stay as they are. Undefined: it is 0.
  virtual void step(double lr, const at::Tensor& found_inf = {}) = 0;
  // The gradients that step() would use; writing them changes them.
  virtual std::vector<at::Tensor> gradients() const = 0;
  // Drops the gradients (sets them to none), or zeroes them where optimizer.set_to_none is false.
  virtual void zero_grad() = 0;
  // From the next step on step() takes the learning rate from this scalar, which lies beside the
  // parameters (float; on the CPU double), and ignores its argument: a captured step cannot take
  // numbers of the host. Undefined: from its argument again. False: it cannot, nothing changes.
  virtual bool read_rate_from(const at::Tensor&) { return false; }
  // From the next step on, in place of optimizer.momentum and optimizer.beta1, whichever it has.
  virtual void set_momentum(double momentum) = 0;
  // Everything needed to continue, named "PARAMETER.momentum" and the like; shares storage.
  virtual std::vector<NamedTensor> state() = 0;
  // Takes what state() gave. Fails with kRun on a tensor that is missing, unknown or of another
  // shape.
  virtual void load_state(const std::vector<NamedTensor>& state) = 0;
};

// Where `mode` is kFp16O2 or kBf16O2, the parameters of two dimensions or more become half as wide,
// and the optimizer works on fp32 masters of them, which are part of its state.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups,
                                          PrecisionMode mode = PrecisionMode::kFp32);

using OptimizerFactory = std::unique_ptr<Optimizer> (*)(const OptimizerOptions&,
                                                        std::vector<ParameterGroup>);
std::span<const RegistryEntry<OptimizerFactory>> optimizers();

}  // namespace saturate
