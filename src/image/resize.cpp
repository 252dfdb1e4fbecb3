// Separable resize, one output row at a time: the input rows below it are blended into one row of
// the input's width, then that row's pixels into the output's. Vertical first, unlike Pillow,
// because then most of the work runs along rows and the intermediate row stays in cache. The two
// orders differ by at most one level, as each rounds to 8 bits in between.
//
// The fixed-point form of the filter follows ATen (UpSampleKernel.cpp,
// compute_index_ranges_int16_weights).
#include <algorithm>

#include "image/blend.h"
#include "image/fast_axis.h"
#include "saturate/data/augment.h"
#include "saturate/data/effects.h"

namespace saturate {
namespace {

struct AxisFilter {  // weights of the input pixels below each output pixel
  int in = -1, out = -1;
  int taps = 0, pitch = 0;      // pitch: taps rounded up to an even number
  int precision = 0;            // a weight of 1 is 1 << precision
  std::vector<int> first;       // [out], first[i] + taps <= in
  std::vector<int16_t> weight;  // [out][pitch], fixed point
};

// The largest precision at which every weight fits 16 bits; 14 for a weight of 1.
int weight_precision(double largest) {
  int precision = 0;
  while (precision < 22 && 0.5 + largest * (1 << (precision + 1)) < (1 << 15)) ++precision;
  return precision;
}

void prepare(AxisFilter& filter, int in, int out, TriangleFilter& scratch) {
  if (filter.in == in && filter.out == out) return;
  make_triangle_filter(0, in, 0, in, out, scratch);
  const std::vector<double>& weights = scratch.weight;
  filter.in = in;
  filter.out = out;
  filter.taps = scratch.taps;
  filter.pitch = (filter.taps + 1) / 2 * 2;
  filter.first.assign(scratch.first.begin(), scratch.first.end());
  filter.precision = weight_precision(*std::max_element(weights.begin(), weights.end()));
  filter.weight.assign(size_t(out) * size_t(filter.pitch), 0);
  for (size_t i = 0; i < size_t(out); ++i)
    for (size_t k = 0; k < size_t(filter.taps); ++k)
      filter.weight[i * size_t(filter.pitch) + k] = static_cast<int16_t>(
          0.5 + weights[i * size_t(filter.taps) + k] * (1 << filter.precision));
}

}  // namespace

struct Resizer::State {
  AxisFilter horizontal, vertical;
  TriangleFilter filter;  // being built
  std::vector<uint8_t> row;
  Image scratch;
};

Resizer::Resizer() : state_(std::make_unique<State>()) {}
Resizer::~Resizer() = default;
Resizer::Resizer(Resizer&&) noexcept = default;
Resizer& Resizer::operator=(Resizer&&) noexcept = default;

Image& Resizer::scratch() {
  return state_->scratch;
}

void Resizer::resize(const Image& in, const Box& box, int out_width, int out_height, uint8_t* out) {
  const AxisFilter &h = state_->horizontal, &v = state_->vertical;
  prepare(state_->horizontal, box.width, out_width, state_->filter);
  prepare(state_->vertical, box.height, out_height, state_->filter);
  const size_t row_bytes = size_t(box.width) * 3;
  std::vector<uint8_t>& row = state_->row;
  row.resize(row_bytes + kBlendSlack);
  for (size_t y = 0; y < size_t(out_height); ++y, out += ptrdiff_t{out_width} * 3) {
    const uint8_t* top = in.row(box.y + v.first[y]) + ptrdiff_t{box.x} * 3;
    const int16_t* weight = v.weight.data() + y * size_t(v.pitch);
    blend_rows({weight, v.taps, v.pitch, v.precision}, top, size_t(in.width) * 3, row.data(),
               box.width * 3);
    blend_pixels({h.weight.data(), h.taps, h.pitch, h.precision}, row.data(), h.first.data(), out,
                 out_width);
  }
}

namespace {

// Adds those to `out` outputs.
void add_filters(int longest, int out, ResizeFilters& made) {
  made.by_length.push_back({});
  AxisFilter filter;
  TriangleFilter scratch;
  for (int length = 1; length <= longest; ++length) {
    prepare(filter, length, out, scratch);
    made.by_length.push_back(
        {int64_t(made.values.size()), filter.taps, filter.pitch, filter.precision});
    for (const int first : filter.first)
      made.values.push_back(static_cast<int16_t>(static_cast<uint16_t>(first)));
    made.values.insert(made.values.end(), filter.weight.begin(), filter.weight.end());
  }
}

}  // namespace

ResizeFilters resize_filters(int longest, const ImageSize& size) {
  ResizeFilters made;
  add_filters(longest, size.width, made);
  if (!size.is_square()) add_filters(longest, size.height, made);
  return made;
}

}  // namespace saturate
