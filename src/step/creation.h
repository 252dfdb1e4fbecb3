// Where the step makes the tensors that it needs (train.create_on_device).
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

// For the process: on their device, or on the host, to be copied there, as carelessly written loops
// do; each such copy waits for the device.
void set_create_on_device(bool on_device);

at::Tensor zeros_there(at::IntArrayRef sizes, const at::TensorOptions& options);
at::Tensor zeros_like_there(const at::Tensor& tensor);

}  // namespace saturate
