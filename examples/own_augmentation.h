// A custom augmentation: one pixel function for CPU and GPU, and a launcher for each. The
// parameters are drawn beforehand, so the results are the same. Compiled by nvcc too.
#pragma once

#include <cstdint>

#include "saturate/data/pixel.h"

// Darkens an image with the distance from a point of it, as a lens does.
struct Vignette {
  float x, y;      // the point, in pixels
  float strength;  // share of the light that is lost at one side's length from it
};

// A batch of uint8 images that becomes normalised floats: one pass darkens and normalises.
struct VignetteBatch {
  const uint8_t* images;      // [count, size, size, 3]
  const Vignette* vignettes;  // [count]
  int64_t count;
  int size;
  saturate::Normalize normalize;
  float* out;  // [count, size, size, 3]

  SATURATE_HOST_DEVICE int64_t values() const { return count * size * size * 3; }
};

// Value `i` of batch.out.
SATURATE_HOST_DEVICE inline float vignette_value(const VignetteBatch& batch, int64_t i) {
  const int64_t pixel = i / 3, side = batch.size;
  const Vignette& vignette = batch.vignettes[pixel / (side * side)];
  const float x = (float(pixel % side) - vignette.x) / float(side);
  const float y = (float(pixel / side % side) - vignette.y) / float(side);
  const float kept = 1 - vignette.strength * (x * x + y * y);
  const float level = float(batch.images[i]) * (kept > 0 ? kept : 0);
  const int channel = int(i % 3);
  return saturate::normalize_value(uint8_t(level + 0.5f), batch.normalize.scale[channel],
                                   batch.normalize.shift[channel]);
}

// The kernel's reference on the CPU.
void vignette_cpu(const VignetteBatch& batch);

// The same on the current GPU, with all pointers to host memory: copies in, runs the kernel, copies
// out. False if there is no GPU. In a training loop the batch would be on the GPU already.
bool vignette_cuda(const VignetteBatch& batch);
