// The last stage of a batch of images, on the device that holds it: the only source of this folder
// that differs between builds with and without CUDA, so that the others do not.
#pragma once

#include "saturate/data/effects.h"

namespace c10 {
struct Device;
}

namespace saturate {

// Whether this build can apply effects and normalisation on a GPU.
bool has_finish_kernel();

void finish_batch(const FinishArguments& batch, const c10::Device& device);

}  // namespace saturate
