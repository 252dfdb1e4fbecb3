#include <algorithm>

#include "image/fast_kernels.h"

namespace saturate {
namespace {

void blend_rows(const uint8_t* const* rows, const uint16_t* weight, int taps, int n, uint8_t* out) {
  for (int x = 0; x < n; ++x) {
    uint32_t sum = uint32_t(fast_bias(taps));
    for (int k = 0; k < taps; ++k) sum += (uint32_t{rows[k][x]} << 8) * weight[k] >> 16;
    out[x] = static_cast<uint8_t>(sum >> 8);
  }
}

// The sample of one output at tap 0.
const uint8_t* first_sample(const FastGather& gather, const uint8_t* row, int pack, int group,
                            int output) {
  for (int w = 0; w < gather.windows; ++w) {
    const size_t at = (size_t(pack) * size_t(gather.windows) + size_t(w)) * 4 + size_t(group);
    const uint8_t lane = gather.lane[at * 16 + size_t(output) * 2 + 1];
    if (lane < 16) return row + gather.base[at] + lane;
  }
  return row;  // an output past the last, with weights 0
}

void gather_row(const FastGather& gather, const uint8_t* row, uint8_t* out) {
  for (int pack = 0; pack < gather.packs; ++pack) {
    for (int i = 0; i < kFastPack; ++i) {
      const uint8_t* from = first_sample(gather, row, pack, i / 8, i % 8);
      const uint16_t* weight = gather.weight.data() + size_t(pack * gather.taps * kFastPack + i);
      uint32_t sum = uint32_t(fast_bias(gather.taps));
      for (int k = 0; k < gather.taps; ++k, weight += kFastPack)
        sum += (uint32_t{from[k]} << 8) * *weight >> 16;
      *out++ = static_cast<uint8_t>(sum >> 8);
    }
  }
}

void ycc_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* out) {
  for (int x = 0; x < n; ++x, out += 3) store_rgb(y[x], cb[x], cr[x], out);
}

void normalize_values(const Normalize& normalize, const uint8_t* in, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i)
    out[i] = normalize_value(in[i], normalize.scale[i % 3], normalize.shift[i % 3]);
}

void normalize_to_bfloat16(const Normalize& normalize, const uint8_t* in, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; ++i)
    out[i] = to_bfloat16(normalize_value(in[i], normalize.scale[i % 3], normalize.shift[i % 3]));
}

void normalize_planes(const Normalize& normalize, const uint8_t* in, size_t pixels, float* out) {
  for (size_t i = 0; i < 3 * pixels; ++i)
    out[i % 3 * pixels + i / 3] =
        normalize_value(in[i], normalize.scale[i % 3], normalize.shift[i % 3]);
}

void normalize_planes_to_bfloat16(const Normalize& normalize, const uint8_t* in, size_t pixels,
                                  uint16_t* out) {
  for (size_t i = 0; i < 3 * pixels; ++i)
    out[i % 3 * pixels + i / 3] =
        to_bfloat16(normalize_value(in[i], normalize.scale[i % 3], normalize.shift[i % 3]));
}

}  // namespace

void make_fast_gather(const FastAxis& axis, int origin, FastGather& gather) {
  const int out = static_cast<int>(axis.first.size());
  // Eight outputs share a window, or four, or fewer, depending on how close their samples are.
  int together = 8;
  // The first samples of the outputs that share a window, which rise, or fall if it is mirrored.
  const auto range_from = [&](int begin) {
    return std::minmax(axis.first[size_t(begin)],
                       axis.first[size_t(std::min(begin + together, out) - 1)]);
  };
  const auto fits = [&] {
    for (int i = 0; i < out; i += together) {
      const auto [low, high] = range_from(i);
      if (high - low > 15) return false;
    }
    return true;
  };
  while (!fits()) together /= 2;
  gather.windows = 8 / together;
  gather.near = true;
  gather.taps = axis.taps;
  gather.packs = (out + kFastPack - 1) / kFastPack;
  const size_t slots = size_t(gather.packs) * size_t(gather.windows) * 4;
  gather.base.assign(slots, 0);
  gather.lane.assign(slots * 16, 0x80);
  gather.weight.assign(size_t(gather.packs * gather.taps * kFastPack), 0);
  for (int i = 0; i < out; ++i) {
    const int pack = i / kFastPack, place = i % kFastPack, group = place / 8,
              window = i % 8 / together;
    const int low = range_from(i / together * together).first;
    const size_t slot =
        (size_t(pack) * size_t(gather.windows) + size_t(window)) * 4 + size_t(group);
    gather.base[slot] = low - origin;
    const int lane = axis.first[size_t(i)] - low;
    gather.lane[slot * 16 + size_t(i % 8) * 2 + 1] = static_cast<uint8_t>(lane);
    gather.near = gather.near && lane + axis.taps <= 16;
    for (int k = 0; k < axis.taps; ++k)
      gather.weight[size_t((pack * axis.taps + k) * kFastPack + place)] =
          axis.weight[size_t(i * axis.taps + k)];
  }
}

const FastKernels& plain_fast_kernels() {
  static const FastKernels kernels{"plain",          blend_rows,
                                   gather_row,       ycc_to_rgb,
                                   normalize_values, normalize_to_bfloat16,
                                   normalize_planes, normalize_planes_to_bfloat16};
  return kernels;
}

}  // namespace saturate
