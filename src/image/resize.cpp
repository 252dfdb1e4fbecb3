// Separable resize, one output row at a time: the rows below it are blended into one row of the
// input's width, and that row's pixels into the output's. Vertical first, unlike Pillow, because
// then the larger part of the work runs along rows and the intermediate row stays in cache. The two
// orders differ by at most one level, as each rounds to 8 bits in between.
//
// The filter and its fixed-point form are those of ATen (UpSampleKernel.cpp,
// compute_index_ranges_int16_weights), which took them from Pillow (libImaging/Resample.c).
#include <algorithm>
#include <cmath>

#include "image/blend.h"
#include "saturate/augment.h"

namespace saturate {
namespace {

// The largest precision at which every weight fits 16 bits; 14 for a weight of 1.
int weight_precision(double largest) {
  int precision = 0;
  while (precision < 22 && 0.5 + largest * (1 << (precision + 1)) < (1 << 15)) ++precision;
  return precision;
}

// The triangle's weights for the input pixels [begin, end) below a centre; they add up to 1.
void triangle(double centre, double support, int begin, int end, double* weights) {
  double total = 0;
  for (int j = begin; j < end; ++j)
    total += weights[j - begin] = std::max(0.0, 1 - std::abs((j + 0.5 - centre) / support));
  for (int j = begin; j < end; ++j) weights[j - begin] /= total;
}

}  // namespace

void Resizer::prepare(Filter& filter, int in, int out) {
  if (filter.in == in && filter.out == out) return;
  const double scale = double(in) / out;
  const double support = std::max(scale, 1.0);
  filter.in = in;
  filter.out = out;
  // An axis that keeps its size is copied: its second tap would weigh nothing.
  filter.taps = in == out ? 1 : std::min(in, static_cast<int>(std::ceil(2 * support)));
  filter.pitch = (filter.taps + 1) / 2 * 2;
  filter.first.resize(size_t(out));
  weights_.assign(size_t(out) * size_t(filter.pitch), 0.0);
  for (int i = 0; i < out; ++i) {
    const double centre = scale * (i + 0.5);
    const int begin = std::max(static_cast<int>(centre - support + 0.5), 0);
    // Every output reads `taps` pixels, the last ones with zeros before their weights.
    const int first = std::min(begin, in - filter.taps);
    const int end = std::min({static_cast<int>(centre + support + 0.5), in, first + filter.taps});
    filter.first[size_t(i)] = first;
    triangle(centre, support, begin, end,
             weights_.data() + size_t(i) * size_t(filter.pitch) + (begin - first));
  }
  filter.precision = weight_precision(*std::max_element(weights_.begin(), weights_.end()));
  filter.weight.resize(weights_.size());
  for (size_t k = 0; k < weights_.size(); ++k)
    filter.weight[k] = static_cast<int16_t>(0.5 + weights_[k] * (1 << filter.precision));
}

void Resizer::resize(const Image& in, const Box& box, int out_width, int out_height, uint8_t* out) {
  prepare(horizontal_, box.width, out_width);
  prepare(vertical_, box.height, out_height);
  const Filter &h = horizontal_, &v = vertical_;
  const size_t row_bytes = size_t(box.width) * 3;
  row_.resize(row_bytes + kBlendSlack);
  for (size_t y = 0; y < size_t(out_height); ++y, out += ptrdiff_t{out_width} * 3) {
    const uint8_t* top = in.row(box.y + v.first[y]) + ptrdiff_t{box.x} * 3;
    const int16_t* weight = v.weight.data() + y * size_t(v.pitch);
    blend_rows({weight, v.taps, v.pitch, v.precision}, top, size_t(in.width) * 3, row_.data(),
               box.width * 3);
    blend_pixels({h.weight.data(), h.taps, h.pitch, h.precision}, row_.data(), h.first.data(), out,
                 out_width);
  }
}

}  // namespace saturate
