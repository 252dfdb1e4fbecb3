#include "saturate/batch_norm.h"

namespace saturate {

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& input) {
  if (!hook_ || !is_training()) return torch::nn::BatchNorm2dImpl::forward(input);
  TORCH_CHECK(takes_hook(),
              "a BatchNorm2d over processes needs affine, track_running_stats and a momentum");
  num_batches_tracked += 1;
  return hook_(*this, input);
}

}  // namespace saturate
