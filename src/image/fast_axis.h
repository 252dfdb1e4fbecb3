// One axis of the fast path's resize: from the samples of a component's plane, at its own
// resolution, to output pixels.
#pragma once

#include <cstdint>
#include <vector>

#include "image/triangle_filter.h"

namespace saturate {

// A weight of 1, limited to 16 bits.
constexpr int kFastWeightOne = 65535;
// More taps would lose precision (image/fast_kernels.h).
constexpr int kFastMaxTaps = 64;

// Specification of one resize.
struct FastAxisSpec {
  int begin, length;  // the crop, in pixels of the image
  int out;            // pixels of the output
  int num, den;       // samples of the plane per pixel of the image: num / den, at most 1
  int samples;        // of the whole plane
  bool doubled;       // num / den is 1 / 2, and the exact path upsamples the plane before it crops
  bool mirrored;      // the last output pixel comes first
};

// Output i is the sum over k < taps of weight[i * taps + k] / 65536 times sample first[i] + k.
struct FastAxis {
  int taps = 0;
  std::vector<int> first;        // [out]
  std::vector<uint16_t> weight;  // [out][taps]
  int low = 0, high = 0;         // samples in use: [low, high)
};

// Builds axes; keeps scratch memory.
class FastAxisMaker {
 public:
  // False if the fast path does not support it: too many taps.
  bool make(const FastAxisSpec& spec, FastAxis& axis);

 private:
  void double_taps(const FastAxisSpec& spec);
  TriangleFilter filter_, folded_;
};

}  // namespace saturate
