#include "saturate/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "saturate/data/error.h"
#include "step/switches.h"

namespace saturate {
namespace {

[[noreturn]] void fail_order(const std::string& problem) {
  fail(ErrorKind::kRun, problem, "GradScaler",
       "Call unscale(), the optimizer's step() and update() once each, in this order");
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, const at::Device& device)
    : options_(options),
      scale_(at::full({}, options.initial_scale, at::device(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::device(device).dtype(at::kInt))) {}

// The second summand is 0, or NaN if the loss is not finite: then no gradient is finite, on any
// process of an all-reduce, even with a custom loss.
at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  const at::Tensor value = loss.detach();
  return loss * (scale_ + (value - value));
}

at::Tensor GradScaler::unscale(const std::vector<at::Tensor>& gradients) {
  if (found_inf_.defined()) fail_order("gradients are divided by the loss scale twice");
  const c10::NoGradGuard no_grad;
  found_inf_ = zeros_there({}, scale_.options());
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  if (!gradients.empty())
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, inverse);
  return found_inf_;
}

void GradScaler::update() {
  if (!found_inf_.defined()) fail_order("the loss scale is updated without a step");
  const c10::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth, options_.backoff,
                         options_.interval);
  found_inf_.reset();
}

double GradScaler::value() const {
  return scale_.item<float>();
}

std::vector<NamedTensor> GradScaler::state() const {
  return {{"scale", scale_}, {"growth_tracker", growth_tracker_}};
}

void GradScaler::load_state(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, own] : state())
    for (const auto& given : tensors)
      if (given.name == name && given.tensor.numel() == 1) own.fill_(given.tensor.item());
}

}  // namespace saturate
