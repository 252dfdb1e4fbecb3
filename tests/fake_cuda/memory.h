#pragma once

#include <cstdint>

namespace saturate::fake_cuda {

// Of each device.
int64_t device_bytes();

}  // namespace saturate::fake_cuda
