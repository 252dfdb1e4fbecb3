// The only GPU memory function that needs CUDA's headers.
#pragma once

#include <c10/core/Device.h>

namespace saturate {

// Limits torch to this share of the device's memory. Fails with kUsage in a build without CUDA.
void limit_cuda_memory(c10::DeviceIndex device, double share);

}  // namespace saturate
