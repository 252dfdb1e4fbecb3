// A device's streams as saturate::Stream, through c10's interface: the same for all device types,
// so it compiles without CUDA.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "saturate/data/stream.h"

namespace saturate {

// A stream of the device's pool, independent of all others. REQUIRES: the device has streams, like
// CUDA.
std::unique_ptr<Stream> make_device_stream(const std::string& name, const c10::Device& device,
                                           StreamChecker* checker);
// The calling thread's current stream at each use; on the CPU the host's stream.
std::unique_ptr<Stream> make_current_stream(const std::string& name, const c10::Device& device,
                                            StreamChecker* checker);

}  // namespace saturate
