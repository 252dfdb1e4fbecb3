// Where the step creates its temporary tensors (train.create_on_device).
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// For the process: create on the device, or on the host and copy, as naive loops do; each such copy
// waits for the device.
void set_create_on_device(bool on_device);

at::Tensor zeros_there(at::IntArrayRef sizes, const at::TensorOptions& options);
at::Tensor zeros_like_there(const at::Tensor& tensor);

}  // namespace saturate
