#pragma once

#include <cstdint>

namespace saturate::fake_cuda {

// Counters of each device.
int64_t device_bytes();

}  // namespace saturate::fake_cuda
