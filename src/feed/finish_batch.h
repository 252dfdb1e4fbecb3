// The project's own kernels for a batch of images or volumes, on the device that holds it: the only
// source of this folder that differs between builds with and without CUDA, so that the others do
// not.
#pragma once

#include "image/packed_jpeg.h"
#include "saturate/data/effects.h"

namespace c10 {
struct Device;
}

namespace saturate {

// Whether this build can decode packed JPEGs, apply effects and normalisation, and transform
// volumes on a GPU.
bool has_finish_kernel();

// Decodes the batch; `scratch` is not used on a CPU.
void unpack_jpegs(const UnpackArguments& batch, const c10::Device& device);

void finish_batch(const FinishArguments& batch, const c10::Device& device);

// On a CPU equal to the loader's threads.
void transform_volumes(const VolumeArguments& batch, const c10::Device& device);

}  // namespace saturate
