// SGD and AdamW with torch.optim's fused=True semantics: state is created when a parameter first
// has a gradient. REQUIRES: parameters keep their device and layout once the optimizer has stepped.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "saturate/error.h"
#include "saturate/optimizer.h"

namespace saturate {
namespace {

// The fused kernels walk the memory of parameter, gradient and state side by side, so all must have
// the parameter's layout. Autograd sees to that for the gradients it makes; this is for others.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  bool same = gradient.sizes() == parameter.sizes();
  for (int64_t d = 0; same && d < parameter.dim(); ++d)
    same = parameter.size(d) <= 1 || gradient.stride(d) == parameter.stride(d);
  return same ? gradient : at::empty_like(parameter).copy_(gradient);
}

// One state tensor of every parameter of a group: undefined until it is created.
using Slot = std::vector<at::Tensor>;

// What SGD and AdamW share: groups, and named state in slots.
class FusedOptimizer : public Optimizer {
 public:
  FusedOptimizer(std::vector<ParameterGroup> groups, std::vector<std::string> slot_names)
      : groups_(std::move(groups)), slot_names_(std::move(slot_names)) {
    for (const auto& group : groups_)
      state_.emplace_back(slot_names_.size(), Slot(group.parameters.size()));
  }

  void step(double lr) override {
    const at::NoGradGuard no_grad;
    for (size_t g = 0; g < groups_.size(); ++g) step_group(groups_[g], state_[g], lr);
  }

  void zero_grad() override {
    for (const auto& group : groups_) {
      for (const auto& named : group.parameters) named.tensor.mutable_grad().reset();
    }
  }

  std::vector<NamedTensor> state() override {
    const at::NoGradGuard no_grad;
    std::vector<NamedTensor> named;
    visit_state([&](const std::string& name, at::Tensor& tensor) {
      named.push_back({name, tensor});
    });
    return named;
  }

  void load_state(const std::vector<NamedTensor>& loaded) override;

 protected:
  using GroupState = std::vector<Slot>;  // one per slot name
  virtual void step_group(const ParameterGroup& group, GroupState& state, double lr) = 0;
  // What state starts as; the same as if it had been there, zero, before the first step.
  virtual at::Tensor initial_state(size_t /*slot*/, const at::Tensor& parameter) const {
    return at::zeros_like(parameter);
  }

 private:
  // Creates what is missing, so that saved state is always complete.
  template <class Visitor>
  void visit_state(const Visitor& visit) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const auto& parameters = groups_[g].parameters;
      for (size_t p = 0; p < parameters.size(); ++p) {
        for (size_t s = 0; s < slot_names_.size(); ++s) {
          at::Tensor& tensor = state_[g][s][p];
          if (!tensor.defined()) tensor = initial_state(s, parameters[p].tensor);
          visit(parameters[p].name + "." + slot_names_[s], tensor);
        }
      }
    }
  }

  std::vector<ParameterGroup> groups_;
  std::vector<std::string> slot_names_;
  std::vector<GroupState> state_;  // one per group
};

[[noreturn]] void fail_state(const std::string& what, const std::string& tensor) {
  fail(ErrorKind::kRun, "the saved optimizer state does not fit: " + what, tensor,
       "Resume with the model and optimizer that wrote it");
}

// Checks everything before it changes anything.
void FusedOptimizer::load_state(const std::vector<NamedTensor>& loaded) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, tensor] : loaded) {
    if (!sources.emplace(name, tensor).second) fail_state("a tensor is there twice", name);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  visit_state([&](const std::string& name, at::Tensor& tensor) {
    const auto found = sources.extract(name);
    if (!found) fail_state("a tensor is missing", name);
    if (found.mapped().sizes() != tensor.sizes()) fail_state("a tensor has another shape", name);
    if (found.mapped().scalar_type() != tensor.scalar_type())
      fail_state("a tensor has another type", name);
    copies.emplace_back(tensor, found.mapped());
  });
  if (!sources.empty()) fail_state("a tensor is unknown", sources.begin()->first);
  for (auto& [to, from] : copies) to.copy_(from);
}

class Sgd : public FusedOptimizer {
 public:
  Sgd(const OptimizerOptions& options, std::vector<ParameterGroup> groups)
      : FusedOptimizer(std::move(groups), options.momentum == 0
                                              ? std::vector<std::string>{}
                                              : std::vector<std::string>{"momentum"}),
        momentum_(options.momentum),
        nesterov_(options.nesterov) {}

 private:
  struct Operands {
    std::vector<at::Tensor> parameters, gradients, momenta;
  };

  // The kernel's first step sets a momentum to the gradient, so parameters without one go apart.
  void step_group(const ParameterGroup& group, GroupState& state, double lr) override {
    std::array<Operands, 2> operands;  // continued, first step
    for (size_t p = 0; p < group.parameters.size(); ++p) {
      const at::Tensor& parameter = group.parameters[p].tensor;
      if (!parameter.grad().defined()) continue;
      const bool first = momentum_ != 0 && !state[0][p].defined();
      if (first) state[0][p] = at::empty_like(parameter);
      auto& into = operands[first];
      into.parameters.push_back(parameter);
      into.gradients.push_back(in_layout_of(parameter, parameter.grad()));
      if (momentum_ != 0) into.momenta.push_back(state[0][p]);
    }
    for (const bool first : {false, true}) {
      const auto& [parameters, gradients, momenta] = operands[first];
      if (parameters.empty()) continue;
      at::_fused_sgd_(parameters, gradients, momenta, group.weight_decay, momentum_, lr,
                      /*dampening=*/0.0, nesterov_, /*maximize=*/false, first);
    }
  }

  double momentum_;
  bool nesterov_;
};

class AdamW : public FusedOptimizer {
 public:
  AdamW(const OptimizerOptions& options, std::vector<ParameterGroup> groups)
      : FusedOptimizer(std::move(groups), {"step", "exp_avg", "exp_avg_sq"}),
        beta1_(options.beta1),
        beta2_(options.beta2),
        eps_(options.eps) {}

 private:
  // The counts of steps live beside the parameters, as floats: the kernel reads them there.
  at::Tensor initial_state(size_t slot, const at::Tensor& parameter) const override {
    return slot == 0 ? at::zeros({}, parameter.options().dtype(at::kFloat))
                     : at::zeros_like(parameter);
  }

  void step_group(const ParameterGroup& group, GroupState& state, double lr) override {
    std::vector<at::Tensor> parameters, gradients;
    GroupState operands(state.size());
    for (size_t p = 0; p < group.parameters.size(); ++p) {
      const at::Tensor& parameter = group.parameters[p].tensor;
      if (!parameter.grad().defined()) continue;
      parameters.push_back(parameter);
      gradients.push_back(in_layout_of(parameter, parameter.grad()));
      for (size_t s = 0; s < state.size(); ++s) {
        if (!state[s][p].defined()) state[s][p] = initial_state(s, parameter);
        operands[s].push_back(state[s][p]);
      }
    }
    if (parameters.empty()) return;
    const auto& steps = operands[0];
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, operands[1], operands[2], /*max_exp_avg_sqs=*/{},
                      steps, lr, beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

  double beta1_, beta2_, eps_;
};

template <class T>
std::unique_ptr<Optimizer> make(const OptimizerOptions& options,
                                std::vector<ParameterGroup> groups) {
  return std::make_unique<T>(options, std::move(groups));
}

constexpr std::array<RegistryEntry<OptimizerFactory>, 2> kOptimizers{{
    {"sgd", "SGD with (Nesterov) momentum, fused", make<Sgd>},
    {"adamw", "Adam with decoupled weight decay, fused", make<AdamW>},
}};

}  // namespace

std::vector<ParameterGroup> make_parameter_groups(const OptimizerOptions& options,
                                                  const std::vector<NamedTensor>& parameters) {
  std::vector<ParameterGroup> groups;
  for (const auto& named : parameters) {
    const bool decays = options.decay_norm_and_bias || named.tensor.dim() > 1;
    const double weight_decay = decays ? options.weight_decay : 0;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& known) {
      return known.weight_decay == weight_decay;
    });
    if (group == groups.end())
      group = groups.insert(groups.end(), ParameterGroup{{}, weight_decay});
    group->parameters.push_back(named);
  }
  return groups;
}

std::span<const RegistryEntry<OptimizerFactory>> optimizers() {
  return kOptimizers;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups) {
  return find_entry(optimizers(), options.name, "optimizer.name").make(options, std::move(groups));
}

}  // namespace saturate
