#include "image/fast_axis.h"

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

// Follows ATen (UpSampleKernel.cpp, compute_index_ranges_int16_weights), which took it from Pillow
// (libImaging/Resample.c).
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

// Converts filter_, over pixels, to a filter over the plane's samples. libjpeg upsamples a plane so
// that an even pixel 2c is 3/4 of sample c and 1/4 of the previous one, an odd one 3/4 and 1/4 of
// the next one; at the ends of the plane the missing sample is c itself.
void FastAxisMaker::double_taps(const FastAxisSpec& spec) {
  const int last = spec.samples - 1, out = spec.out;
  folded_.taps = std::min(spec.samples, filter_.taps / 2 + 2);
  folded_.first.resize(size_t(out));
  folded_.weight.assign(size_t(out) * size_t(folded_.taps), 0.0);
  for (int i = 0; i < out; ++i) {
    const int pixel = filter_.first[size_t(i)];
    const int first = std::clamp((pixel - 1) >> 1, 0, spec.samples - folded_.taps);
    folded_.first[size_t(i)] = first;
    double* weight = folded_.weight.data() + size_t(i) * size_t(folded_.taps);
    for (int k = 0; k < filter_.taps; ++k) {
      const double part = filter_.weight[size_t(i) * size_t(filter_.taps) + size_t(k)];
      const int near = (pixel + k) / 2;
      const int far = (pixel + k) % 2 == 0 ? std::max(near - 1, 0) : std::min(near + 1, last);
      weight[near - first] += 0.75 * part;
      weight[far - first] += 0.25 * part;
    }
  }
  std::swap(filter_, folded_);
}

bool FastAxisMaker::make(const FastAxisSpec& spec, FastAxis& axis) {
  if (spec.doubled) {
    make_triangle_filter(spec.begin, spec.length, spec.begin, spec.begin + spec.length, spec.out,
                         filter_);
    double_taps(spec);
  } else {
    const double ratio = double(spec.num) / spec.den;
    const double begin = spec.begin * ratio, length = spec.length * ratio;
    const int high = std::min(spec.samples, static_cast<int>(std::ceil(begin + length)));
    make_triangle_filter(begin, length, static_cast<int>(begin), high, spec.out, filter_);
  }
  if (filter_.taps > kFastMaxTaps) return false;
  const size_t taps = size_t(filter_.taps), out = size_t(spec.out);
  axis.taps = filter_.taps;
  axis.first.resize(out);
  axis.weight.resize(out * taps);
  for (size_t i = 0; i < out; ++i) {
    const size_t to = spec.mirrored ? out - 1 - i : i;
    axis.first[to] = filter_.first[i];
    for (size_t k = 0; k < taps; ++k)
      axis.weight[to * taps + k] = static_cast<uint16_t>(
          std::min<int>(kFastWeightOne, int(filter_.weight[i * taps + k] * 65536 + 0.5)));
  }
  axis.low = *std::min_element(axis.first.begin(), axis.first.end());
  axis.high = *std::max_element(axis.first.begin(), axis.first.end()) + axis.taps;
  return true;
}

}  // namespace saturate
