#include "saturate/batch_norm.h"

#include <utility>

#include "model/norm_hook.h"

namespace saturate {
namespace {

thread_local NormHook* current = nullptr;

}  // namespace

NormHook* set_norm_hook(NormHook* hook) {
  return std::exchange(current, hook);
}

NormHook* norm_hook() {
  return current;
}

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& input) {
  NormHook* const hook = norm_hook();
  if (!hook || !is_training()) return torch::nn::BatchNorm2dImpl::forward(input);
  TORCH_CHECK(takes_hook(),
              "a BatchNorm2d over processes needs affine, track_running_stats and a momentum");
  num_batches_tracked += 1;
  return hook->normalise(input, weight, bias, running_mean, running_var, options.momentum().value(),
                         options.eps());
}

}  // namespace saturate
