// The one thing about a GPU's memory that takes CUDA's headers.
#pragma once

#include <c10/core/Device.h>

namespace saturate {

// Lets torch have at most this share of the device's memory. Fails with kUsage in a build without
// CUDA.
void limit_cuda_memory(c10::DeviceIndex device, double share);

}  // namespace saturate
