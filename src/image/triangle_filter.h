// The filter of all resizing: a triangle, widened by the reduction factor, like Pillow's BILINEAR
// and torchvision's antialias=True.
#pragma once

#include <vector>

namespace saturate {

// One axis: output i is the sum over k < taps of weight[i * taps + k] times sample first[i] + k.
// Reuse avoids allocations.
struct TriangleFilter {
  int taps = 0;
  std::vector<int> first;      // [out]
  std::vector<double> weight;  // [out][taps], those of each output add up to 1
};

// The filter that resizes the interval [begin, begin + length) of an axis, in fractional samples,
// to `out` samples, reading only [low, high). Sample j covers [j, j + 1). REQUIRES: low <= begin <
// begin + length <= high, up to a fraction of a sample.
void make_triangle_filter(double begin, double length, int low, int high, int out,
                          TriangleFilter& filter);

}  // namespace saturate
