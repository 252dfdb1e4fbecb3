// Follows ATen (UpSampleKernel.cpp, compute_index_ranges_int16_weights), which took it from Pillow
// (libImaging/Resample.c).
#include "image/triangle_filter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace saturate {
namespace {

// The weights of the samples [begin, end) around a centre; they add up to 1.
void triangle(double centre, double support, int begin, int end, double* weights) {
  double total = 0;
  for (int j = begin; j < end; ++j)
    total += weights[j - begin] = std::max(0.0, 1 - std::abs((j + 0.5 - centre) / support));
  for (int j = begin; j < end; ++j) weights[j - begin] /= total;
}

}  // namespace

void make_triangle_filter(double begin, double length, int low, int high, int out,
                          TriangleFilter& filter) {
  const double scale = length / out;
  const double support = std::max(scale, 1.0);
  // When samples are copied, the second tap has weight 0.
  const bool copies = scale == 1 && begin == std::floor(begin);
  filter.taps = copies ? 1 : std::min(high - low, static_cast<int>(std::ceil(2 * support)));
  filter.first.resize(size_t(out));
  filter.weight.assign(size_t(out) * size_t(filter.taps), 0.0);
  for (int i = 0; i < out; ++i) {
    const double centre = begin + scale * (i + 0.5);
    const int from = std::max(static_cast<int>(centre - support + 0.5), low);
    // Every output reads `taps` samples, the last ones with zero weights before their own.
    const int first = std::min(from, high - filter.taps);
    const int to = std::min({static_cast<int>(centre + support + 0.5), high, first + filter.taps});
    filter.first[size_t(i)] = first;
    triangle(centre, support, from, to,
             filter.weight.data() + size_t(i) * size_t(filter.taps) + (from - first));
  }
}

}  // namespace saturate
