// Weights stored in half precision: with fp32 master weights for the optimizer, or without.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/equal.h>

#include <map>
#include <utility>

#include "saturate/model.h"
#include "step/factories.h"
#include "step/precision.h"

namespace saturate {
namespace {

constexpr const char* kSuffix = ".master";

// Applies to parameters of two or more dimensions: biases and norms stay in fp32, since BatchNorm
// computes in fp32 and autocast casts the few others.
class MasterOptimizer : public Optimizer {
 public:
  MasterOptimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups,
                  at::ScalarType type)
      : set_to_none_(options.set_to_none) {
    const at::NoGradGuard no_grad;
    for (auto& group : groups) {
      for (auto& named : group.parameters) {
        if (named.tensor.dim() < 2 || named.tensor.scalar_type() != at::kFloat) continue;
        const at::Tensor stored = named.tensor;
        named.tensor = stored.detach().clone();
        stored.set_data(stored.to(type));
        names_.push_back(named.name + kSuffix);
        stored_.push_back(stored);
        master_weights_.push_back(named.tensor);
      }
    }
    optimizer_ = make_optimizer(options, std::move(groups));
  }

  // Accumulates the gradients of several backward passes in fp32.
  void take_gradients() override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < stored_.size(); ++i) {
      at::Tensor& gradient = stored_[i].mutable_grad();
      if (!gradient.defined()) continue;
      at::Tensor& sum = master_weights_[i].mutable_grad();
      if (sum.defined())
        sum.add_(gradient);
      else
        sum = gradient.to(at::kFloat);
      drop_gradient(stored_[i], set_to_none_);
    }
  }

  void step(double lr, const at::Tensor& found_inf) override {
    const at::NoGradGuard no_grad;
    take_gradients();
    follow_model();
    optimizer_->step(lr, found_inf);
    at::_foreach_copy_(stored_, master_weights_);
  }

  std::vector<at::Tensor> gradients() const override { return optimizer_->gradients(); }

  at::Tensor gradient_of(const at::Tensor& parameter) const override {
    for (size_t i = 0; i < stored_.size(); ++i)
      if (stored_[i].is_same(parameter)) return master_weights_[i].grad();
    return parameter.grad();
  }

  void zero_grad() override {
    optimizer_->zero_grad();
    for (const auto& tensor : stored_) drop_gradient(tensor, set_to_none_);
  }

  bool read_rate_from(const at::Tensor& rate) override { return optimizer_->read_rate_from(rate); }

  void set_momentum(double momentum) override { optimizer_->set_momentum(momentum); }

  std::vector<NamedTensor> state() override {
    follow_model();
    auto tensors = optimizer_->state();
    for (size_t i = 0; i < names_.size(); ++i) tensors.push_back({names_[i], master_weights_[i]});
    return tensors;
  }

  void load_state(const std::vector<NamedTensor>& state) override;

 private:
  // Weights may have been loaded since the last step: then the master weights are reset to them.
  void follow_model() {
    if (following_) return;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < stored_.size(); ++i)
      if (!at::equal(master_weights_[i].to(stored_[i].scalar_type()), stored_[i]))
        master_weights_[i].copy_(stored_[i]);
    following_ = true;
  }

  std::unique_ptr<Optimizer> optimizer_;  // of master weights and other parameters
  std::vector<std::string> names_;        // of master weights in the saved state
  std::vector<at::Tensor> stored_, master_weights_;
  bool following_ = false;
  const bool set_to_none_;
};

// A checkpoint may have no master weights: then they start as the model's weights.
void MasterOptimizer::load_state(const std::vector<NamedTensor>& state) {
  std::map<std::string, at::Tensor> own;
  for (size_t i = 0; i < names_.size(); ++i) own[names_[i]] = master_weights_[i];
  std::vector<NamedTensor> rest;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // destination, source
  for (const auto& named : state) {
    const auto found = own.find(named.name);
    if (found == own.end()) {
      rest.push_back(named);
      continue;
    }
    if (found->second.sizes() != named.tensor.sizes())
      fail_state("a tensor has another shape", named.name);
    copies.emplace_back(found->second, named.tensor);
  }
  optimizer_->load_state(rest);
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
  following_ = false;
}

}  // namespace

void store_all_in_half(Model& model, PrecisionMode mode) {
  if (mode != PrecisionMode::kFp16O3) return;
  const at::NoGradGuard no_grad;
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& [name, tensor] : tensors)
      if (tensor.scalar_type() == at::kFloat) tensor.set_data(tensor.to(at::kHalf));
}

std::unique_ptr<Optimizer> make_master_optimizer(const OptimizerOptions& options,
                                                 std::vector<ParameterGroup> groups,
                                                 at::ScalarType type) {
  return std::make_unique<MasterOptimizer>(options, std::move(groups), type);
}

}  // namespace saturate
