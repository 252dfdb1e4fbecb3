// Preloaded with the fake, after torch: convolutions are torch's own, since cuDNN has no device.
#include <ATen/Context.h>

namespace {

struct WithoutCudnn {
  WithoutCudnn() { at::globalContext().setUserEnabledCuDNN(false); }
} without_cudnn;

}  // namespace
