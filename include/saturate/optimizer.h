// SPDX-License-Identifier: BSD-3-Clause
// Optimizers: SGD, Adam and AdamW use LibTorch's fused operators (one call updates all parameters
// of a group; separate operators with optimizer.fused=false), the others use at::_foreach_*
// operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/data/registry.h"
#include "saturate/data/step_options.h"
#include "saturate/model.h"

namespace saturate {

class Group;

// Parameters with the same settings.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  double weight_decay = 0;
  double lr_factor = 1;  // factor on the learning rate of a step
};

// Groups parameters by their settings, groups and members in the order of `parameters`. Unless
// decay_norm_and_bias, parameters of at most one dimension (biases, BatchNorm's weights) have no
// weight decay. Parameters in optimizer.freeze are in no group, and require no gradient from now
// on; neither are those that their model keeps fixed, which require none. Fails with kUsage on a
// pattern without a match, and if nothing is left to train.
std::vector<ParameterGroup> make_parameter_groups(const OptimizerOptions& options,
                                                  const std::vector<NamedTensor>& parameters);

// Not for concurrent use. Parameters without a gradient stay unchanged.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // To be called after each backward: accumulates gradients that are not accumulated in the
  // parameters themselves.
  virtual void take_gradients() {}
  // Updates every parameter that has a gradient, in place, without synchronising with a device.
  // `found_inf`: a float scalar on the parameters' device (see grad_scaler.h); if it is 1,
  // parameters and state stay unchanged. Undefined: 0.
  virtual void step(double lr, const at::Tensor& found_inf = {}) = 0;
  // The gradients that step() uses; writing them changes them.
  virtual std::vector<at::Tensor> gradients() const = 0;
  // The one of them for a parameter of the model, which need not be in it (master weights);
  // undefined: none.
  virtual at::Tensor gradient_of(const at::Tensor& parameter) const { return parameter.grad(); }
  // Frees the gradients (sets them to none), or zeroes them if optimizer.set_to_none is false.
  virtual void zero_grad() = 0;
  // From the next step on step() reads the learning rate from this scalar on the parameters' device
  // (float; on the CPU double), and ignores its argument: a captured step cannot use host numbers.
  // Undefined: from its argument again. False: not supported, nothing changes.
  virtual bool read_rate_from(const at::Tensor&) { return false; }
  // From the next step on, replaces optimizer.momentum or optimizer.beta1, whichever it has.
  virtual void set_momentum(double momentum) = 0;
  // Everything needed to resume, named "PARAMETER.momentum" and the like; shares storage.
  virtual std::vector<NamedTensor> state() = 0;
  // Loads what state() returned. Fails with kRun on a tensor that is missing, unknown or has
  // another shape.
  virtual void load_state(const std::vector<NamedTensor>& state) = 0;
};

// If `mode` is kFp16O2 or kBf16O2, parameters of two or more dimensions are stored in that type,
// and the optimizer updates fp32 master weights, which are part of its state.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups,
                                          PrecisionMode mode = PrecisionMode::kFp32);

// ZeRO stage 1 (https://arxiv.org/abs/1910.02054): each process keeps the optimizer state of some
// parameters, updates these, and broadcasts them.
using OwnOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterGroup>)>;

// An optimizer over all of `groups`, whose parameters are divided among processes with about as
// many values each. `make` creates the optimizer of a process's own parameters. step(), state() and
// load_state() are collective: state() covers all parameters, on every rank, with the names of an
// unsharded optimizer, so that any number of processes can load it. `group` must outlive it.
std::unique_ptr<Optimizer> make_sharded_optimizer(Group& group, std::vector<ParameterGroup> groups,
                                                  const OwnOptimizer& make);

// The rank that owns each parameter, in the order of `groups`: the largest are assigned first, each
// to the rank with the fewest values so far.
std::vector<int> owners_of(const std::vector<ParameterGroup>& groups, int world);

using OptimizerFactory = std::unique_ptr<Optimizer> (*)(const OptimizerOptions&,
                                                        std::vector<ParameterGroup>);
std::span<const RegistryEntry<OptimizerFactory, OptimizerTraits>> optimizers();

// Scales the gradients, in place, by a common factor so that their total 2-norm is at most
// `max_norm`, like torch.nn.utils.clip_grad_norm_. Does not synchronise with the device. Returns
// the norm before, a scalar on their device. REQUIRES: gradients, all on one device.
at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm);

// The first of the model's parameters, then of its buffers (BatchNorm's statistics, which indicate
// earlier outputs), with a non-finite value; empty if all are finite. Waits for the device: for use
// before a run, or after a failure.
std::string first_non_finite(Model& model);
std::string first_non_finite(const std::vector<NamedTensor>& tensors);

}  // namespace saturate
