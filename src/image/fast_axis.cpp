#include "image/fast_axis.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

namespace saturate {

// Follows ATen (UpSampleKernel.cpp, compute_index_ranges_int16_weights), which took it from Pillow
// (libImaging/Resample.c).
void make_triangle_filter(double begin, double length, int low, int high, int out,
                          TriangleFilter& filter) {
  const double scale = length / out;
  const double support = std::max(scale, 1.0), slope = 1 / support;
  // When samples are copied, the second tap has weight 0.
  const bool copies = scale == 1 && begin == std::floor(begin);
  const int taps = copies ? 1 : std::min(high - low, static_cast<int>(std::ceil(2 * support)));
  const auto count = size_t(out);
  filter.taps = taps;
  filter.first.resize(count);
  filter.weight.resize(count * size_t(taps));
  filter.scratch.resize(count * size_t(taps + 2));
  int* const first = filter.first.data();
  double* const centre = filter.scratch.data();
  double* const total = centre + count;
  double* const weight = total + count;  // [taps][out], so that the compiler makes the loops wide
  for (int i = 0; i < out; ++i) {
    centre[i] = begin + scale * (i + 0.5);
    // Every output reads `taps` samples; those outside the triangle have weight 0.
    first[i] = std::min(std::max(static_cast<int>(centre[i] - support + 0.5), low), high - taps);
    total[i] = 0;
  }
  for (int k = 0; k < taps; ++k)
    for (int i = 0; i < out; ++i) {
      const double distance = std::abs((first[i] + k + 0.5 - centre[i]) * slope);
      total[i] += weight[k * out + i] = std::max(0.0, 1 - distance);
    }
  for (int k = 0; k < taps; ++k)
    for (int i = 0; i < out; ++i) filter.weight[i * taps + k] = weight[k * out + i] / total[i];
}

// Equal arguments give equal filters: at full size, those of chroma begin with those of luma.
const TriangleFilter& FastAxisMaker::triangle(double begin, double length, int low, int high,
                                              int out) {
  const auto is_it = [&](const Kept& kept) {
    return kept.begin == begin && kept.length == length && kept.low == low && kept.high == high &&
           kept.out == out;
  };
  for (const Kept& kept : kept_)
    if (is_it(kept)) return kept.filter;
  Kept& kept = kept_[next_++ % std::size(kept_)];
  kept.out = 0;  // until the filter is complete
  make_triangle_filter(begin, length, low, high, out, kept.filter);
  kept = {begin, length, low, high, out, std::move(kept.filter)};
  return kept.filter;
}

// Converts `from`, over pixels, to folded_, over the plane's samples. first(p): of the samples for
// pixels from p on; add(p, part, weight): adds the part of pixel p to weight(s) of its samples s.
template <class First, class Add>
void FastAxisMaker::fold(const TriangleFilter& from, int out, const First& first, const Add& add) {
  folded_.first.resize(size_t(out));
  folded_.weight.assign(size_t(out) * size_t(folded_.taps), 0.0);
  const double* part = from.weight.data();
  double* weight = folded_.weight.data();
  for (int i = 0; i < out; ++i, part += from.taps, weight += folded_.taps) {
    const int pixel = from.first[size_t(i)];
    const int begin = folded_.first[size_t(i)] = first(pixel);
    const auto of_sample = [&](int sample) -> double& { return weight[sample - begin]; };
    for (int k = 0; k < from.taps; ++k) add(pixel + k, part[k], of_sample);
  }
}

// libjpeg upsamples a plane so that an even pixel 2c is 3/4 of sample c and 1/4 of the previous
// one, an odd one 3/4 and 1/4 of the next one; at the ends of the plane the missing sample is c
// itself.
void FastAxisMaker::double_taps(const TriangleFilter& from, const FastAxisSpec& spec) {
  const int last = spec.samples - 1;
  folded_.taps = std::min(spec.samples, from.taps / 2 + 2);
  fold(
      from, spec.out,
      [&](int pixel) { return std::clamp((pixel - 1) >> 1, 0, spec.samples - folded_.taps); },
      [&](int pixel, double part, const auto& weight) {
        const int near = pixel / 2;
        const int far = pixel % 2 == 0 ? std::max(near - 1, 0) : std::min(near + 1, last);
        weight(near) += 0.75 * part;
        weight(far) += 0.25 * part;
      });
}

// A plane whose samples libjpeg repeats.
void FastAxisMaker::repeat_taps(const TriangleFilter& from, const FastAxisSpec& spec) {
  const int times = spec.den / spec.num;
  folded_.taps = std::min(spec.samples, (from.taps - 2 + times) / times + 1);
  fold(
      from, spec.out,
      [&](int pixel) { return std::min(pixel / times, spec.samples - folded_.taps); },
      [&](int pixel, double part, const auto& weight) { weight(pixel / times) += part; });
}

bool FastAxisMaker::make(const FastAxisSpec& spec, FastAxis& axis) {
  const TriangleFilter* filter = &folded_;
  if (spec.doubled || spec.repeated) {
    const TriangleFilter& pixels =
        triangle(spec.begin, spec.length, spec.begin, spec.begin + spec.length, spec.out);
    spec.doubled ? double_taps(pixels, spec) : repeat_taps(pixels, spec);
  } else {
    const double ratio = double(spec.num) / spec.den;
    const double begin = spec.begin * ratio, length = spec.length * ratio;
    const int high = std::min(spec.samples, static_cast<int>(std::ceil(begin + length)));
    filter = &triangle(begin, length, static_cast<int>(begin), high, spec.out);
  }
  if (filter->taps > kFastMaxTaps) return false;
  const size_t taps = size_t(filter->taps), out = size_t(spec.out);
  axis.taps = filter->taps;
  axis.first = filter->first;
  axis.weight.resize(out * taps);
  // One loop over all, which the compiler makes wide.
  const double* const from = filter->weight.data();
  uint16_t* const to = axis.weight.data();
  for (size_t i = 0; i < out * taps; ++i)
    to[i] = static_cast<uint16_t>(
        std::min<int>(kFastWeightOne, static_cast<int>(from[i] * 65536 + 0.5)));
  if (spec.mirrored) {
    std::ranges::reverse(axis.first);
    for (size_t i = 0; i < out / 2; ++i)
      std::swap_ranges(to + i * taps, to + (i + 1) * taps, to + (out - 1 - i) * taps);
  }
  axis.low = *std::min_element(axis.first.begin(), axis.first.end());
  axis.high = *std::max_element(axis.first.begin(), axis.first.end()) + axis.taps;
  return true;
}

}  // namespace saturate
