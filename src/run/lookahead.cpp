#include "run/lookahead.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "run/checkpoint.h"

namespace saturate {

Lookahead::Lookahead(Model& model, const TrainOptions& options) : options_(options) {
  for (const auto& [name, tensor] : model_state(model)) {
    if (!tensor.is_floating_point()) continue;
    names_.push_back(name);
    weights_.push_back(tensor.detach());
  }
}

void Lookahead::begin() {
  const c10::NoGradGuard no_grad;
  if (slow_.empty())
    for (const auto& tensor : weights_) slow_.push_back(tensor.clone());
}

void Lookahead::update(int64_t step, int64_t steps) {
  const c10::NoGradGuard no_grad;
  if (step % options_.lookahead_every != 0 && step != steps) return;
  const double keep =
      options_.lookahead * std::pow(double(step) / double(steps), options_.lookahead_power);
  at::_foreach_lerp_(slow_, weights_, 1 - keep);
  at::_foreach_copy_(weights_, slow_);
}

std::vector<NamedTensor> Lookahead::state() const {
  std::vector<NamedTensor> state;
  for (size_t i = 0; i < slow_.size(); ++i) state.push_back({names_[i], slow_[i]});
  return state;
}

void Lookahead::load_state(const std::vector<NamedTensor>& state, const std::string& where) {
  slow_.clear();
  if (state.empty()) return;
  std::vector<NamedTensor> targets;
  for (size_t i = 0; i < names_.size(); ++i) targets.push_back({names_[i], weights_[i].clone()});
  copy_by_name(state, targets, where);
  for (auto& target : targets) slow_.push_back(std::move(target.tensor));
}

}  // namespace saturate
