#include "step/creation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <atomic>

namespace saturate {
namespace {

std::atomic<bool> create_on_device = true;

}  // namespace

void set_create_on_device(bool on_device) {
  create_on_device = on_device;
}

at::Tensor zeros_there(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (create_on_device) return at::zeros(sizes, options);
  return at::zeros(sizes, options.device(at::kCPU)).to(options.device());
}

at::Tensor zeros_like_there(const at::Tensor& tensor) {
  if (create_on_device) return at::zeros_like(tensor);
  const at::Tensor host = at::empty_like(tensor, tensor.options().device(at::kCPU));
  return host.zero_().to(tensor.device());
}

}  // namespace saturate
