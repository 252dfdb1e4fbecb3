#include "step/grouped_optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <map>
#include <utility>

#include "saturate/data/error.h"
#include "step/switches.h"

namespace saturate {
namespace {

// The fused kernels walk the memory of parameter, gradient and state in parallel, so all need the
// parameter's layout. Autograd's own gradients have it; others may not.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  bool same = gradient.sizes() == parameter.sizes();
  for (int64_t d = 0; same && d < parameter.dim(); ++d)
    same = parameter.size(d) <= 1 || gradient.stride(d) == parameter.stride(d);
  return same ? gradient : at::empty_like(parameter).copy_(gradient);
}

at::Tensor initial_state(const std::string& slot, const at::Tensor& parameter) {
  return slot == "step" ? zeros_there({}, parameter.options().dtype(at::kFloat))
                        : zeros_like_there(parameter);
}

}  // namespace

void fail_state(const std::string& what, const std::string& tensor) {
  fail(ErrorKind::kRun, "the saved optimizer state does not fit: " + what, tensor,
       "Resume with the model and optimizer that wrote it");
}

GroupedOptimizer::GroupedOptimizer(const OptimizerOptions& options,
                                   std::vector<ParameterGroup> groups,
                                   const std::vector<std::string>& slot_names)
    : options_(options) {
  for (auto& group : groups) add_group(std::move(group), slot_names);
}

void GroupedOptimizer::add_group(ParameterGroup group, std::vector<std::string> slot_names) {
  std::vector<Slot> state(slot_names.size(), Slot(group.parameters.size()));
  groups_.push_back({std::move(group), std::move(slot_names), std::move(state)});
}

void GroupedOptimizer::step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    Operands operands;
    operands.state.resize(group.state.size());
    for (size_t p = 0; p < group.about.parameters.size(); ++p) {
      const at::Tensor& parameter = group.about.parameters[p].tensor;
      if (!parameter.grad().defined()) continue;
      operands.parameters.push_back(parameter);
      operands.gradients.push_back(in_layout_of(parameter, parameter.grad()));
      for (size_t s = 0; s < group.state.size(); ++s) {
        at::Tensor& tensor = group.state[s][p];
        if (!tensor.defined()) tensor = initial_state(group.slot_names[s], parameter);
        operands.state[s].push_back(tensor);
      }
    }
    if (!operands.parameters.empty())
      update(group, operands, lr * group.about.lr_factor, found_inf);
  }
}

void GroupedOptimizer::update(const Group& group, const Operands& operands, double lr,
                              const at::Tensor& found_inf) {
  unless_found_inf(operands, found_inf, [&] { move(operands, group.about.weight_decay, lr); });
}

bool GroupedOptimizer::read_rate_from(const at::Tensor& rate) {
  if (!reads_rate()) return false;
  rate_ = rate;
  return true;
}

at::Tensor GroupedOptimizer::rate_for(const Group& group) const {
  const double factor = group.about.lr_factor;
  return !rate_.defined() || factor == 1 ? rate_ : rate_ * factor;
}

std::vector<at::Tensor> GroupedOptimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const Group& group : groups_)
    for (const auto& named : group.about.parameters)
      if (named.tensor.grad().defined()) gradients.push_back(named.tensor.grad());
  return gradients;
}

void GroupedOptimizer::zero_grad() {
  for (const Group& group : groups_)
    for (const auto& named : group.about.parameters)
      drop_gradient(named.tensor, options_.set_to_none);
}

// Creates missing state, so that saved state is always complete.
template <class Visitor>
void GroupedOptimizer::visit_state(const Visitor& visit) {
  for (Group& group : groups_) {
    const auto& parameters = group.about.parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      for (size_t s = 0; s < group.slot_names.size(); ++s) {
        at::Tensor& tensor = group.state[s][p];
        if (!tensor.defined()) tensor = initial_state(group.slot_names[s], parameters[p].tensor);
        visit(parameters[p].name + "." + group.slot_names[s], tensor);
      }
    }
  }
}

std::vector<NamedTensor> GroupedOptimizer::state() {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> named;
  visit_state([&](const std::string& name, at::Tensor& tensor) {
    named.push_back({name, tensor});
  });
  return named;
}

// Validates everything before changing anything.
void GroupedOptimizer::load_state(const std::vector<NamedTensor>& loaded) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, tensor] : loaded) {
    if (!sources.emplace(name, tensor).second) fail_state("a tensor occurs twice", name);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // destination, source
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

void drop_gradient(const at::Tensor& parameter, bool set_to_none) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none)
    gradient.reset();
  else
    gradient.zero_();
}

void unless_found_inf(const Operands& operands, const at::Tensor& found_inf,
                      const std::function<void()>& update) {
  if (!found_inf.defined()) {
    update();
    return;
  }
  std::vector<at::Tensor> tensors = operands.parameters, before;
  for (const Slot& slot : operands.state) tensors.insert(tensors.end(), slot.begin(), slot.end());
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.clone());
  update();
  const at::Tensor undo = found_inf.eq(1);
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i].copy_(at::where(undo, before[i], tensors[i]));
}

at::Tensor clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)));
  // Multiplies by 1 if nothing is clipped: a branch would have to wait for the device.
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1);
  at::_foreach_mul_(gradients, factor);
  return norm;
}

std::string first_non_finite(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (!at::isfinite(tensor).all().item<bool>()) return name;
  return "";
}

std::string first_non_finite(Model& model) {
  const std::string name = first_non_finite(model.parameters());
  return name.empty() ? first_non_finite(model.buffers()) : name;
}

}  // namespace saturate
