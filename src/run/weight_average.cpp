#include "run/weight_average.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "run/checkpoint.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kAveragedCount = "n_averaged";  // as in AveragedModel's state

// REQUIRES: no more tensors than `own`.
std::vector<NamedTensor> with_names_of(const std::vector<NamedTensor>& own,
                                       const std::vector<at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < tensors.size(); ++i) named.push_back({own[i].name, tensors[i]});
  return named;
}

// Tensors like `own`, with the values that `state` has by their names. Fails as copy_by_name().
std::vector<at::Tensor> loaded_like(const std::vector<NamedTensor>& own,
                                    const std::vector<NamedTensor>& state,
                                    const std::string& where) {
  std::vector<NamedTensor> targets;
  for (const auto& [name, tensor] : own) targets.push_back({name, tensor.detach().clone()});
  copy_by_name(state, targets, where);
  std::vector<at::Tensor> loaded;
  for (auto& target : targets) loaded.push_back(std::move(target.tensor));
  return loaded;
}

}  // namespace

WeightAverage::WeightAverage(Model& model, const TrainOptions& options)
    : options_(options), tensors_(model.parameters()), parameters_(tensors_.size()) {
  if (options.swa > 0)
    for (auto& buffer : model.buffers()) tensors_.push_back(std::move(buffer));
}

bool WeightAverage::is_due(int64_t step, int64_t steps, bool ends_epoch) const {
  if (options_.swa == 0) return !ends_epoch;
  constexpr double kRounding = 1e-9;  // of the product: 0.55 * 100 is more than 55
  return ends_epoch && double(step) >= options_.swa * double(steps) * (1 - kRounding);
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
  std::vector<NamedTensor> state = with_names_of(tensors_, averages_);
  if (averaged_ > 0) state.push_back({kAveragedCount, at::scalar_tensor(averaged_, at::kLong)});
  return state;
}

void WeightAverage::load_state(const std::vector<NamedTensor>& state, const std::string& where) {
  const bool is_swa = options_.swa > 0;
  const bool counts =
      std::ranges::any_of(state, [](const auto& each) { return each.name == kAveragedCount; });
  if (!state.empty() && counts != is_swa)
    fail(ErrorKind::kRun,
         is_swa ? "the checkpoint has the average of train.ema, and the run has train.swa"
                : "the checkpoint has the average of train.swa, and the run has train.ema",
         where, "Set only the one that it had, or neither");
  averages_.clear();
  averaged_ = 0;
  if (state.empty()) return;
  averages_ = loaded_like(tensors_, state, where);
  if (!is_swa) return;
  const std::vector<NamedTensor> count = {{kAveragedCount, at::zeros({}, at::kLong)}};
  averaged_ = loaded_like(count, state, where)[0].item<int64_t>();
}

Lookahead::Lookahead(Model& model, const TrainOptions& options) : options_(options) {
  for (const auto& [name, tensor] : model_state(model))
    if (tensor.is_floating_point()) weights_.push_back({name, tensor.detach()});
}

void Lookahead::begin() {
  const c10::NoGradGuard no_grad;
  if (slow_.empty())
    for (const auto& [name, tensor] : weights_) slow_.push_back(tensor.clone());
}

void Lookahead::update(int64_t step, int64_t steps) {
  const c10::NoGradGuard no_grad;
  if (step % options_.lookahead_every != 0 && step != steps) return;
  const double keep =
      options_.lookahead * std::pow(double(step) / double(steps), options_.lookahead_power);
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : weights_) weights.push_back(tensor);
  at::_foreach_lerp_(slow_, weights, 1 - keep);
  at::_foreach_copy_(weights, slow_);
}

std::vector<NamedTensor> Lookahead::state() const {
  return with_names_of(weights_, slow_);
}

void Lookahead::load_state(const std::vector<NamedTensor>& state, const std::string& where) {
  slow_.clear();
  if (!state.empty()) slow_ = loaded_like(weights_, state, where);
}

}  // namespace saturate
