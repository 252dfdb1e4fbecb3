// A device's streams as saturate::Stream, by c10's interface to them: the same for every kind of
// device, so that it compiles without CUDA.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "saturate/stream.h"

namespace saturate {

// One of the device's pool, whose streams wait for no other. REQUIRES: the device has streams, as
// CUDA's.
std::unique_ptr<Stream> make_device_stream(const std::string& name, const c10::Device& device,
                                           StreamChecker* checker);
// The stream that is the calling thread's current one whenever it is used; of the CPU the host's.
std::unique_ptr<Stream> make_current_stream(const std::string& name, const c10::Device& device,
                                            StreamChecker* checker);

}  // namespace saturate
