// The last stage of a batch of images or volumes, on the device that holds it: the only source of
// this folder that differs between builds with and without CUDA, so that the others do not.
#pragma once

#include "saturate/data/effects.h"

namespace c10 {
struct Device;
}

namespace saturate {

// Whether this build can apply effects and normalisation, and transform volumes, on a GPU.
bool has_finish_kernel();

void finish_batch(const FinishArguments& batch, const c10::Device& device);

// On a CPU equal to the loader's threads.
void transform_volumes(const VolumeArguments& batch, const c10::Device& device);

}  // namespace saturate
