// Highway kernels of the effects, like fast_simd.cpp for decoding: compiled once for each
// instruction set, chosen at run time, with -ffp-contract=off. Each line of arithmetic matches one
// of effect_pixel.h, in the same order, on as many pixels as a vector has floats.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "image/effect_simd.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <cstring>

#include "image/effect_kernels.h"
#include "image/effect_pixel.h"
#include "image/simd_targets.h"

HWY_BEFORE_NAMESPACE();
namespace saturate {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

EffectKernels kernels_of_effects() {
  return plain_effect_kernels();
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Integers = hn::Rebind<int32_t, Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;  // one per float
using F = hn::Vec<Floats>;
using I = hn::Vec<Integers>;
using B = hn::Vec<Bytes>;

HWY_INLINE F constant(float value) {
  return hn::Set(Floats(), value);
}
HWY_INLINE F from_levels(B levels) {
  return hn::ConvertTo(Floats(), hn::PromoteTo(Integers(), levels));
}
HWY_INLINE F clamped(F value) {
  return hn::Min(hn::Max(value, constant(0.0f)), constant(255.0f));
}
HWY_INLINE B to_levels(F value) {
  return hn::DemoteTo(Bytes(), hn::ConvertTo(Integers(), hn::Add(clamped(value), constant(0.5f))));
}

struct Pixels {
  F r, g, b;
};

HWY_INLINE F grey(const Pixels& in) {
  return hn::Add(hn::Add(hn::Mul(in.r, constant(0.2989f)), hn::Mul(in.g, constant(0.587f))),
                 hn::Mul(in.b, constant(0.114f)));
}

HWY_INLINE Pixels saturated(const Pixels& in, float factor) {
  const F other = hn::Mul(grey(in), constant(1.0f - factor));
  const auto blend = [&](F value) {
    return clamped(hn::Add(hn::Mul(value, constant(factor)), other));
  };
  return {blend(in.r), blend(in.g), blend(in.b)};
}

HWY_INLINE Pixels turned(const Pixels& in, float turns) {
  const F high = hn::Max(in.r, hn::Max(in.g, in.b)), low = hn::Min(in.r, hn::Min(in.g, in.b));
  const F range = hn::Sub(high, low);
  const F inverse =
      hn::IfThenElseZero(hn::Gt(range, constant(0.0f)), hn::Div(constant(1.0f), range));
  const F green = hn::Add(hn::Mul(hn::Sub(in.b, in.r), inverse), constant(2.0f));
  const F blue = hn::Add(hn::Mul(hn::Sub(in.r, in.g), inverse), constant(4.0f));
  F hue = hn::IfThenElse(hn::Eq(high, in.r), hn::Mul(hn::Sub(in.g, in.b), inverse),
                         hn::IfThenElse(hn::Eq(high, in.g), green, blue));
  hue = hn::Add(hue, constant(turns * 6.0f + 6.0f));
  const auto channel = [&](float n) {
    F k = hn::Add(constant(n), hue);
    const I turn = hn::ConvertTo(Integers(), hn::Mul(k, constant(1.0f / 6.0f)));
    k = hn::Sub(k, hn::Mul(constant(6.0f), hn::ConvertTo(Floats(), turn)));
    const F slope = hn::Min(k, hn::Sub(constant(4.0f), k));
    const F share = hn::Min(hn::Max(slope, constant(0.0f)), constant(1.0f));
    return hn::Sub(high, hn::Mul(range, share));
  };
  return {channel(5.0f), channel(3.0f), channel(1.0f)};
}

HWY_INLINE void recolour_vector(const Effect& effect, uint8_t* pixels) {
  B r, g, b;
  hn::LoadInterleaved3(Bytes(), pixels, r, g, b);
  const Pixels in{from_levels(r), from_levels(g), from_levels(b)};
  if (effect.kind == EffectKind::kGrey) {
    const B level = to_levels(grey(in));
    return hn::StoreInterleaved3(level, level, level, Bytes(), pixels);
  }
  const Pixels out = effect.kind == EffectKind::kHue ? turned(in, effect.value[0])
                                                     : saturated(in, effect.value[0]);
  hn::StoreInterleaved3(to_levels(out.r), to_levels(out.g), to_levels(out.b), Bytes(), pixels);
}

void recolour_pixels(const Effect& effect, uint8_t* pixels, size_t n) {
  const size_t lanes = hn::Lanes(Floats());
  for (; n >= lanes; n -= lanes, pixels += lanes * 3) recolour_vector(effect, pixels);
  if (n == 0) return;
  uint8_t rest[hn::MaxLanes(Floats()) * 3] = {};
  std::memcpy(rest, pixels, n * 3);
  recolour_vector(effect, rest);
  std::memcpy(pixels, rest, n * 3);
}

// Gathers the pixels at byte offsets `at` of `in`, four bytes each, the last of which is not used.
HWY_INLINE I gather(const uint8_t* in, I at) {
  return hn::GatherOffset(Integers(), reinterpret_cast<const int32_t*>(in), at);
}

// Bilinear blend of one byte of each of four neighbours.
template <int kShift>
HWY_INLINE B mixed(I p00, I p01, I p10, I p11, F right, F below) {
  const auto level = [](I pixel) {
    const I byte = hn::And(hn::ShiftRight<kShift>(pixel), hn::Set(Integers(), 255));
    return hn::ConvertTo(Floats(), byte);
  };
  const F left = hn::Sub(constant(1.0f), right), above = hn::Sub(constant(1.0f), below);
  const F top = hn::Add(hn::Mul(level(p00), left), hn::Mul(level(p01), right));
  const F bottom = hn::Add(hn::Mul(level(p10), left), hn::Mul(level(p11), right));
  return to_levels(hn::Add(hn::Mul(top, above), hn::Mul(bottom, below)));
}

HWY_INLINE I floored(F value) {
  const I towards_zero = hn::ConvertTo(Integers(), value);
  const auto above = hn::Lt(value, hn::ConvertTo(Floats(), towards_zero));
  return hn::Add(towards_zero, hn::BitCast(Integers(), hn::VecFromMask(Floats(), above)));
}

// False if a neighbour is outside, or is the last pixel, after which there is no fourth byte.
HWY_INLINE bool affine_vector(const float* matrix, const uint8_t* in, const ImageSize& size, int x,
                              int y, uint8_t* out) {
  const int height = size.height, width = size.width;
  const float middle_x = static_cast<float>(width - 1) * 0.5f;
  const float middle_y = static_cast<float>(height - 1) * 0.5f;
  const F dx = hn::Sub(hn::ConvertTo(Floats(), hn::Iota(Integers(), x)), constant(middle_x));
  const float dy = static_cast<float>(y) - middle_y;
  const auto place = [&](const float* row, float middle) {
    const F sum = hn::Add(hn::Mul(constant(row[0]), dx), constant(row[1] * dy));
    return hn::Add(hn::Add(sum, constant(row[2])), constant(middle));
  };
  const F at_x = place(matrix, middle_x), at_y = place(matrix + 3, middle_y);
  const I column = floored(at_x), row = floored(at_y), before = hn::Set(Integers(), -1);
  const I right_end = hn::Set(Integers(), width - 1), bottom_end = hn::Set(Integers(), height - 1);
  const I offset =
      hn::Mul(hn::Add(hn::Mul(row, hn::Set(Integers(), width)), column), hn::Set(Integers(), 3));
  const I last = hn::Set(Integers(), ((height - 2) * width + width - 2) * 3);
  const auto inside = hn::And(hn::And(hn::Gt(column, before), hn::Lt(column, right_end)),
                              hn::And(hn::Gt(row, before), hn::Lt(row, bottom_end)));
  if (!hn::AllTrue(Integers(), hn::And(inside, hn::Lt(offset, last)))) return false;
  const I p00 = gather(in, offset), p01 = gather(in + 3, offset),
          p10 = gather(in + ptrdiff_t{width} * 3, offset),
          p11 = gather(in + ptrdiff_t{width} * 3 + 3, offset);
  const F right = hn::Sub(at_x, hn::ConvertTo(Floats(), column));
  const F below = hn::Sub(at_y, hn::ConvertTo(Floats(), row));
  hn::StoreInterleaved3(mixed<0>(p00, p01, p10, p11, right, below),
                        mixed<8>(p00, p01, p10, p11, right, below),
                        mixed<16>(p00, p01, p10, p11, right, below), Bytes(), out);
  return true;
}

void affine_row(const float* matrix, const uint8_t* in, const ImageSize& size, int y,
                uint8_t* out) {
  const int lanes = static_cast<int>(hn::Lanes(Floats()));
  for (int x = 0; x < size.width;) {
    const int count = size.width - x < lanes ? size.width - x : lanes;
    if (count < lanes || !affine_vector(matrix, in, size, x, y, out + ptrdiff_t{x} * 3))
      for (int i = x; i < x + count; ++i)
        store_levels(sample_bilinear(in, size, affine_place(matrix, size, i, y)),
                     out + ptrdiff_t{i} * 3);
    x += count;
  }
}

void sharpen(const uint8_t* in, int width, float factor, size_t n, uint8_t* out) {
  const size_t lanes = hn::Lanes(Floats());
  const ptrdiff_t pitch = ptrdiff_t{width} * 3;
  const auto level = [](const uint8_t* at) {
    return hn::PromoteTo(Integers(), hn::LoadU(Bytes(), at));
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const uint8_t* at = in + i;
    const I centre = level(at);
    I sum = hn::ShiftLeft<2>(centre);
    for (const uint8_t* row : {at - pitch, at, at + pitch})
      sum = hn::Add(sum, hn::Add(hn::Add(level(row - 3), level(row)), level(row + 3)));
    const F value = hn::ConvertTo(Floats(), centre);
    const F smooth = hn::Mul(hn::ConvertTo(Floats(), sum), constant(1.0f / 13.0f));
    const F moved = hn::Mul(constant(1.0f - factor), hn::Sub(smooth, value));
    hn::StoreU(to_levels(clamped(hn::Add(value, moved))), Bytes(), out + i);
  }
  for (; i < n; ++i) out[i] = to_level(sharpened(in + i, width, factor));
}

void blur_across(const float* weight, int taps, const uint8_t* in, size_t n, float* out) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    F sum = constant(0.0f);
    for (int k = 0; k < taps; ++k) {
      const F values = from_levels(hn::LoadU(Bytes(), in + i + ptrdiff_t{k} * 3));
      sum = hn::Add(sum, hn::Mul(constant(weight[k]), values));
    }
    hn::StoreU(sum, Floats(), out + i);
  }
  plain_effect_kernels().blur_across(weight, taps, in + i, n - i, out + i);
}

void blur_down(const float* weight, int taps, const float* const* rows, size_t n, uint8_t* out) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    F sum = constant(0.0f);
    for (int k = 0; k < taps; ++k)
      sum = hn::Add(sum, hn::Mul(constant(weight[k]), hn::LoadU(Floats(), rows[k] + i)));
    hn::StoreU(to_levels(sum), Bytes(), out + i);
  }
  for (; i < n; ++i) {
    float sum = 0.0f;
    for (int k = 0; k < taps; ++k) sum += weight[k] * rows[k][i];
    out[i] = to_level(sum);
  }
}

EffectKernels kernels_of_effects() {
  return {
      hwy::TargetName(HWY_TARGET), recolour_pixels, affine_row, sharpen, blur_across, blur_down};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace saturate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace saturate {

HWY_EXPORT(kernels_of_effects);

const EffectKernels& effect_kernels() {
  static const EffectKernels best = HWY_DYNAMIC_DISPATCH(kernels_of_effects)();
  return best;
}

std::vector<EffectKernels> all_effect_kernels() {
  return all_targets(
      plain_effect_kernels(), [] { return HWY_DYNAMIC_DISPATCH(kernels_of_effects)(); },
      &EffectKernels::recolour);
}

}  // namespace saturate
#endif
