#include "advise/bare_loop.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "run/setup.h"
#include "step/precision.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

constexpr double kLr = 0;  // as the loop that this one is compared with

bool has_fused(const Recipe& recipe) {
  return traits_of(recipe.optimizer).fused != FusedUpdate::kNone &&
         !has_masters(recipe.precision.mode) && recipe.precision.mode != PrecisionMode::kFp16O3;
}

}  // namespace

BareLoop::BareLoop(Env& env, const Recipe& recipe, const DeviceBatch& batch)
    : recipe_(recipe), count_(batch.count()) {
  model_ = make_model(recipe.model, {recipe.model.classes, recipe.augment.size, env});
  model_->to(batch.images.device(), recipe.train.channels_last);
  if (const ModelFacets facets = model_->facets(); facets.wanted_images > 0)
    facets.prepare(batch.images);
  store_all_in_half(*model_, recipe.precision.mode);
  model_->set_training(true);
  auto groups = make_parameter_groups(recipe.optimizer, model_->parameters());
  if (has_fused(recipe)) {
    for (const ParameterGroup& group : groups)
      for (const NamedTensor& named : group.parameters) parameters_.push_back(named.tensor);
    for (const at::Tensor& parameter : parameters_) {
      first_.push_back(at::zeros_like(parameter.detach()));
      if (traits_of(recipe.optimizer).fused == FusedUpdate::kSgd) continue;
      second_.push_back(at::zeros_like(parameter.detach()));
      counts_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
    }
  } else {
    own_ = make_optimizer(recipe.optimizer, std::move(groups), recipe.precision.mode);
  }
  const int64_t part = images_per_part(recipe.train), parts = (count_ + part - 1) / part;
  const auto images = batch.images.tensor_split(parts), labels = batch.labels.tensor_split(parts);
  for (size_t i = 0; i < size_t(parts); ++i) parts_.push_back({images[i], labels[i], {}});
}

void BareLoop::step() {
  for (const DeviceBatch& part : parts_)
    forward_backward(part.images, part.labels, double(part.count()) / double(count_));
  update();
}

void BareLoop::forward_backward(const at::Tensor& images, const at::Tensor& labels, double share) {
  at::Tensor loss;
  {
    std::optional<AutocastScope> autocast;
    if (reduced_type(recipe_.precision.mode))
      autocast.emplace(recipe_.precision.mode, images.device().type());
    at::Tensor logits = model_->forward(images);
    if (autocast) logits = logits.to(at::kFloat);
    loss = cross_entropy(logits, labels, recipe_.train.label_smoothing);
    if (share != 1) loss = loss * share;
  }
  loss.backward();
  if (own_) own_->take_gradients();
}

void BareLoop::update() {
  if (own_) {
    own_->step(kLr);
    own_->zero_grad();
    return;
  }
  const c10::NoGradGuard no_grad;
  gradients_.clear();
  for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
  fused_update();
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void BareLoop::fused_update() {
  const OptimizerOptions& o = recipe_.optimizer;
  const FusedUpdate update = traits_of(o).fused;
  if (update == FusedUpdate::kSgd) {
    at::_fused_sgd_(parameters_, gradients_, o.momentum == 0 ? std::vector<at::Tensor>() : first_,
                    o.weight_decay, o.momentum, kLr, /*dampening=*/0.0, o.nesterov,
                    /*maximize=*/false, /*is_first_step=*/false);
    return;
  }
  at::_foreach_add_(counts_, 1);
  // at::_fused_adam_ has overloads: one number for the learning rate here.
  using Fused =
      void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
               at::TensorList, double, double, double, double, double, bool, bool,
               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
  const Fused adam =
      update == FusedUpdate::kAdam ? Fused(at::_fused_adam_) : Fused(at::_fused_adamw_);
  adam(parameters_, gradients_, first_, second_, /*max_exp_avg_sqs=*/{}, counts_, kLr, o.beta1,
       o.beta2, o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
       /*found_inf=*/{});
}

}  // namespace saturate
