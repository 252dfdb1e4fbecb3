#include "run/weight_average.h"

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "run/checkpoint.h"

namespace saturate {
namespace {

constexpr const char* kAveragedCount = "n_averaged";  // as in AveragedModel's state

}  // namespace

WeightAverage::WeightAverage(Model& model, const TrainOptions& options)
    : options_(options), tensors_(model.parameters()), parameters_(tensors_.size()) {
  if (options.swa > 0)
    for (auto& buffer : model.buffers()) tensors_.push_back(std::move(buffer));
}

bool WeightAverage::is_due(int64_t step, int64_t steps, int64_t epoch_steps) const {
  if (options_.swa == 0) return true;
  return double(step) >= options_.swa * double(steps) && (step % epoch_steps == 0 || step == steps);
}

void WeightAverage::update() {
  const c10::NoGradGuard no_grad;
  const bool first = averages_.empty();
  const double weight = options_.swa > 0 ? 1 / double(++averaged_) : 1 - options_.ema;
  std::vector<at::Tensor> averages, now;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor tensor = tensors_[i].tensor.detach();
    if (first) {
      averages_.push_back(tensor.clone());
    } else if (!tensor.is_floating_point()) {
      averages_[i].copy_(tensor);
    } else {
      averages.push_back(averages_[i]);
      now.push_back(tensor);
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, now, weight);
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
  if (averaged_ > 0) state.push_back({kAveragedCount, at::scalar_tensor(averaged_, at::kLong)});
  return state;
}

void WeightAverage::load_state(const std::vector<NamedTensor>& state, const std::string& where) {
  averages_.clear();
  averaged_ = 0;
  if (state.empty()) return;
  std::vector<NamedTensor> targets;
  for (const auto& [name, tensor] : tensors_) targets.push_back({name, tensor.detach().clone()});
  if (options_.swa > 0) targets.push_back({kAveragedCount, at::zeros({}, at::kLong)});
  copy_by_name(state, targets, where);
  if (options_.swa > 0) {
    averaged_ = targets.back().tensor.item<int64_t>();
    targets.pop_back();
  }
  for (auto& target : targets) averages_.push_back(std::move(target.tensor));
}

}  // namespace saturate
