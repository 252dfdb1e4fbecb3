// The inner loops of apply_volume() on the CPU, in a plain version and one for each instruction set
// that Highway supports, as effect_kernels.h. The versions differ only in a gamma's last bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/volume_passes.h"

namespace saturate {

struct VolumeKernels {
  const char* name;
  // out[c] for voxels [first, last) of a row, all channels, from voxel 0 of the row on. REQUIRES:
  // all eight neighbours of each are inside the volume, or a dimension is 1 and its place 0; the
  // volume has fewer than 2^31 values.
  void (*interpolate)(const VolumeForm& form, const float* in, const VolumeLine& line, int first,
                      int last, float* out);
  // Gamma, scale, shift and noise of n values in place, the first of which is value `place`.
  void (*change)(const VolumeEffects& effects, uint32_t place, size_t n, float* values);
};

const VolumeKernels& volume_kernels();
const VolumeKernels& plain_volume_kernels();
// All versions that this CPU supports, for tests; the plain one first.
std::vector<VolumeKernels> all_volume_kernels();

}  // namespace saturate
