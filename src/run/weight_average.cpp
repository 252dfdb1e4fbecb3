#include "run/weight_average.h"

#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/GradMode.h>

#include "run/checkpoint.h"

namespace saturate {

WeightAverage::WeightAverage(Model& model, const TrainOptions& options)
    : options_(options), tensors_(model.parameters()), parameters_(tensors_.size()) {}

bool WeightAverage::is_due(int64_t, int64_t, int64_t) const {
  return true;
}

void WeightAverage::update() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> now;
  now.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) now.push_back(tensor.detach());
  if (averages_.empty()) {
    for (const auto& tensor : now) averages_.push_back(tensor.clone());
  } else {
    at::_foreach_lerp_(averages_, now, 1 - options_.ema);
  }
}

int64_t WeightAverage::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += int64_t(tensor.nbytes());
  return bytes;
}

void WeightAverage::swap() {
  for (size_t i = 0; i < averages_.size(); ++i) {
    const at::Tensor own = tensors_[i].tensor.detach();
    tensors_[i].tensor.set_data(averages_[i]);
    averages_[i] = own;
  }
}

WeightAverage::Scope::Scope(WeightAverage* average) : average_(average) {
  if (average_) average_->swap();
}

WeightAverage::Scope::~Scope() {
  if (average_) average_->swap();
}

std::vector<NamedTensor> WeightAverage::state() const {
  std::vector<NamedTensor> state;
  for (size_t i = 0; i < averages_.size(); ++i) state.push_back({tensors_[i].name, averages_[i]});
  return state;
}

void WeightAverage::load_state(const std::vector<NamedTensor>& state, const std::string& where) {
  averages_.clear();
  if (state.empty()) return;
  std::vector<NamedTensor> targets;
  for (const auto& [name, tensor] : tensors_) targets.push_back({name, tensor.detach().clone()});
  copy_by_name(state, targets, where);
  for (auto& target : targets) averages_.push_back(std::move(target.tensor));
}

}  // namespace saturate
