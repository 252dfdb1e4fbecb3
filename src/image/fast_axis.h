// One axis of the fast path's resize: from the samples of a component's plane, at that component's
// own resolution, to the pixels of the output.
#pragma once

#include <cstdint>
#include <vector>

#include "image/triangle_filter.h"

namespace saturate {

// A weight of 1, clipped to the 16 bits that hold it.
constexpr int kFastWeightOne = 65535;
// More taps than this would lose precision (image/fast_kernels.h).
constexpr int kFastMaxTaps = 64;

// What is resized.
struct FastAxisSpec {
  int begin, length;  // the crop, in pixels of the image
  int out;            // pixels of the output
  int num, den;       // samples of the plane for each pixel of the image: num / den, at most 1
  int samples;        // of the whole plane
  bool doubled;       // num / den is 1 / 2, and the exact path doubles the plane before it crops
  bool mirrored;      // the last output pixel comes first
};

// Output i is the sum over k < taps of weight[i * taps + k] / 65536 times sample first[i] + k.
struct FastAxis {
  int taps = 0;
  std::vector<int> first;        // [out]
  std::vector<uint16_t> weight;  // [out][taps]
  int low = 0, high = 0;         // samples in use: [low, high)
};

// Makes axes; keeps scratch memory.
class FastAxisMaker {
 public:
  // False where the fast path cannot take it: too many taps.
  bool make(const FastAxisSpec& spec, FastAxis& axis);

 private:
  void double_taps(const FastAxisSpec& spec);
  TriangleFilter filter_, folded_;
};

}  // namespace saturate
