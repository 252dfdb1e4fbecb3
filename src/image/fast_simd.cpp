// The kernels in Highway, compiled once for each instruction set (foreach_target.h includes this
// file repeatedly) and chosen at run time. Compiled with -ffp-contract=off: a fused multiply-add
// would round differently from the plain version.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "image/fast_simd.cpp"
// SSSE3 and SSE4 are for CPUs from before 2013: they use the plain version. AVX3_DL's additions to
// AVX-512 are not needed.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "image/fast_kernels.h"
#include "image/simd_targets.h"

HWY_BEFORE_NAMESPACE();
namespace saturate {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

FastKernels kernels() {
  return plain_fast_kernels();
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using Bytes = hn::ScalableTag<uint8_t>;
using Words = hn::ScalableTag<uint16_t>;

// Even and odd samples are processed separately, each in the high byte of a word.
void blend_rows(const uint8_t* const* rows, const uint16_t* weight, int taps, int n, uint8_t* out) {
  const Bytes bytes;
  const Words words;
  const auto high = hn::Set(words, 0xff00);
  const auto bias = hn::Set(words, static_cast<uint16_t>(fast_bias(taps)));
  for (size_t x = 0; x < size_t(n); x += hn::Lanes(bytes)) {
    auto even = bias, odd = bias;
    for (int k = 0; k < taps; ++k) {
      const auto samples = hn::BitCast(words, hn::LoadU(bytes, rows[k] + x));
      const auto w = hn::Set(words, weight[k]);
      even = hn::Add(even, hn::MulHigh(hn::ShiftLeft<8>(samples), w));
      odd = hn::Add(odd, hn::MulHigh(hn::And(samples, high), w));
    }
    const auto levels = hn::Or(hn::ShiftRight<8>(even), hn::And(odd, high));
    hn::StoreU(hn::BitCast(bytes, levels), bytes, out + x);
  }
}

// One 16-byte window for each 128-bit block of D.
template <class D>
HWY_INLINE hn::Vec<D> load_windows(D d, const uint8_t* row, const int32_t* base) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::LoadU(d, row + base[0]);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_windows(half, row, base + hn::MaxLanes(half) / 16),
                       load_windows(half, row, base));
  }
}

// The groups of a pack from `group` on, one per block of a vector. kNear: gather.near.
template <int kWindows, bool kNear>
HWY_INLINE void gather_groups(const FastGather& gather, const uint8_t* row, size_t pack,
                              size_t group, uint8_t* out) {
  const Bytes bytes;
  const Words words;
  const size_t slot = pack * kWindows * 4 + group;
  const int32_t* base = gather.base.data() + slot;
  const uint8_t* lane = gather.lane.data() + slot * 16;
  const uint16_t* weight = gather.weight.data() + (pack * size_t(gather.taps) * 4 + group) * 8;
  auto sum = hn::Set(words, static_cast<uint16_t>(fast_bias(gather.taps)));
  const auto window = load_windows(bytes, row, base);
  auto tap = hn::LoadU(bytes, lane);
  for (int k = 0; k < gather.taps; ++k, weight += kFastPack) {
    auto samples = hn::Zero(bytes);
    if constexpr (kNear) {
      samples = hn::TableLookupBytesOr0(window, tap);
      tap = hn::Add(tap, hn::Set(bytes, 1));
    } else {
      for (int w = 0; w < kWindows; ++w)
        samples =
            hn::Or(samples, hn::TableLookupBytesOr0(load_windows(bytes, row + k, base + w * 4),
                                                    hn::LoadU(bytes, lane + w * 64)));
    }
    sum = hn::Add(sum, hn::MulHigh(hn::BitCast(words, samples), hn::LoadU(words, weight)));
  }
  const hn::Rebind<int16_t, Words> signed_words;
  const hn::Rebind<uint8_t, Words> half;
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(signed_words, hn::ShiftRight<8>(sum))), half, out);
}

template <int kWindows, bool kNear = false>
HWY_INLINE void gather_packs(const FastGather& gather, const uint8_t* row, uint8_t* out) {
  const size_t groups = hn::Lanes(Bytes()) / 16;
  for (size_t pack = 0; pack < size_t(gather.packs); ++pack)
    for (size_t group = 0; group < 4; group += groups, out += groups * 8)
      gather_groups<kWindows, kNear>(gather, row, pack, group, out);
}

void gather_row(const FastGather& gather, const uint8_t* row, uint8_t* out) {
  switch (gather.windows) {
    case 1:
      return gather.near ? gather_packs<1, true>(gather, row, out)
                         : gather_packs<1>(gather, row, out);
    case 2:
      return gather_packs<2>(gather, row, out);
    case 4:
      return gather_packs<4>(gather, row, out);
    default:
      return gather_packs<8>(gather, row, out);
  }
}

// As libjpeg-turbo's jdcolext: 1.402 is 1 + 0.402, 0.71414 is 1 - 0.28586, 1.772 is 2 - 0.228, so
// that the factors fit 16 bits.
void ycc_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int n, uint8_t* out) {
  const hn::ScalableTag<int16_t> words;
  const hn::Repartition<int32_t, decltype(words)> wide;
  const hn::Rebind<uint8_t, decltype(words)> bytes;
  const auto centre = hn::Set(words, 128), one = hn::Set(words, 1);
  const auto half = hn::Set(wide, 32768);
  // -0.34414 for Cb, 0.28586 for Cr.
  const auto to_green = hn::InterleaveLower(words, hn::Set(words, -22554), hn::Set(words, 18734));
  const auto times = [&](auto value, int16_t factor) {
    const auto twice = hn::MulHigh(hn::Add(value, value), hn::Set(words, factor));
    return hn::ShiftRight<1>(hn::Add(twice, one));
  };
  const auto green_part = [&](auto pairs) {
    auto unused = hn::Zero(wide);
    return hn::ShiftRight<16>(hn::ReorderWidenMulAccumulate(wide, pairs, to_green, half, unused));
  };
  for (size_t x = 0; x < size_t(n); x += hn::Lanes(words), out += hn::Lanes(words) * 3) {
    const auto luma = hn::PromoteTo(words, hn::LoadU(bytes, y + x));
    const auto b = hn::Sub(hn::PromoteTo(words, hn::LoadU(bytes, cb + x)), centre);
    const auto r = hn::Sub(hn::PromoteTo(words, hn::LoadU(bytes, cr + x)), centre);
    const auto red = hn::Add(times(r, 26345), r);
    const auto blue = hn::Add(hn::Add(times(b, -14942), b), b);
    const auto green =
        hn::Sub(hn::ReorderDemote2To(words, green_part(hn::InterleaveLower(words, b, r)),
                                     green_part(hn::InterleaveUpper(words, b, r))),
                r);
    hn::StoreInterleaved3(hn::DemoteTo(bytes, hn::Add(luma, red)),
                          hn::DemoteTo(bytes, hn::Add(luma, green)),
                          hn::DemoteTo(bytes, hn::Add(luma, blue)), bytes, out);
  }
}

// As to_bfloat16().
template <class D, class V>
auto rounded(D halves, V value) -> std::enable_if_t<sizeof(hn::TFromD<D>) == 2, hn::Vec<D> > {
  const hn::Rebind<uint32_t, D> bits;
  const auto whole = hn::BitCast(bits, value);
  const auto even = hn::And(hn::ShiftRight<16>(whole), hn::Set(bits, 1));
  const auto sum = hn::Add(hn::Add(whole, hn::Set(bits, 0x7fff)), even);
  // Below 2^16, and so preserved by the signed narrowing.
  const hn::RebindToSigned<decltype(bits)> integers;
  return hn::DemoteTo(halves, hn::BitCast(integers, hn::ShiftRight<16>(sum)));
}
template <class D>
hn::Vec<D> rounded(D, hn::Vec<D> value) {
  return value;
}
void store_rounded(float value, uint16_t* out) {
  *out = to_bfloat16(value);
}
void store_rounded(float value, float* out) {
  *out = value;
}

// Whether to use non-temporal stores: a batch of large images does not stay in the caches until it
// is used.
bool is_streamed(size_t pixels, const void* out, size_t alignment) {
  constexpr size_t kLeast = 128 * 128;
  return pixels >= kLeast && reinterpret_cast<uintptr_t>(out) % alignment == 0;
}

// Levels, normalised and stored at `out`.
template <class L, class V, class Out>
void store_normalized(L levels, V scale, V shift, bool streams, Out* out) {
  const hn::ScalableTag<float> floats;
  const hn::Rebind<int32_t, decltype(floats)> integers;
  const hn::Rebind<Out, decltype(floats)> outs;
  const auto value = hn::ConvertTo(floats, hn::PromoteTo(integers, levels));
  const auto found = rounded(outs, hn::Add(hn::Mul(value, scale), shift));
  streams ? hn::Stream(found, outs, out) : hn::StoreU(found, outs, out);
}

template <class Out>
void normalize_values(const Normalize& normalize, const uint8_t* in, size_t n, Out* out) {
  const hn::ScalableTag<float> floats;
  const hn::Rebind<uint8_t, decltype(floats)> bytes;
  constexpr size_t kLanes = hn::MaxLanes(floats);
  // Three vectors hold a whole number of pixels.
  float scale[3 * kLanes], shift[3 * kLanes];
  for (size_t i = 0; i < 3 * kLanes; ++i) {
    scale[i] = normalize.scale[i % 3];
    shift[i] = normalize.shift[i % 3];
  }
  const auto scale0 = hn::LoadU(floats, scale), scale1 = hn::LoadU(floats, scale + kLanes),
             scale2 = hn::LoadU(floats, scale + 2 * kLanes);
  const auto shift0 = hn::LoadU(floats, shift), shift1 = hn::LoadU(floats, shift + kLanes),
             shift2 = hn::LoadU(floats, shift + 2 * kLanes);
  const bool streams = is_streamed(n / 3, out, sizeof(Out[kLanes]));
  const auto store = [&](size_t at, auto a, auto b) {
    store_normalized(hn::LoadU(bytes, in + at), a, b, streams, out + at);
  };
  size_t at = 0;
  for (; at + 3 * kLanes <= n; at += 3 * kLanes) {
    store(at, scale0, shift0);
    store(at + kLanes, scale1, shift1);
    store(at + 2 * kLanes, scale2, shift2);
  }
  if (streams) hwy::FlushStream();
  for (; at < n; ++at)
    store_rounded(normalize_value(in[at], normalize.scale[at % 3], normalize.shift[at % 3]),
                  out + at);
}

template <class Out>
void normalize_planes(const Normalize& normalize, const uint8_t* in, size_t pixels, Out* out) {
  const hn::ScalableTag<float> floats;
  const hn::Rebind<uint8_t, decltype(floats)> bytes;
  constexpr size_t kLanes = hn::MaxLanes(floats);
  const bool streams = pixels * sizeof(Out) % sizeof(Out[kLanes]) == 0 &&
                       is_streamed(pixels, out, sizeof(Out[kLanes]));
  const auto store = [&](auto levels, size_t c, size_t at) {
    store_normalized(levels, hn::Set(floats, normalize.scale[c]),
                     hn::Set(floats, normalize.shift[c]), streams, out + c * pixels + at);
  };
  size_t at = 0;
  for (; at + kLanes <= pixels; at += kLanes) {
    hn::Vec<decltype(bytes)> red, green, blue;
    hn::LoadInterleaved3(bytes, in + 3 * at, red, green, blue);
    store(red, 0, at);
    store(green, 1, at);
    store(blue, 2, at);
  }
  if (streams) hwy::FlushStream();
  for (; at < pixels; ++at)
    for (size_t c = 0; c < 3; ++c)
      store_rounded(normalize_value(in[3 * at + c], normalize.scale[c], normalize.shift[c]),
                    out + c * pixels + at);
}

FastKernels kernels() {
  return {hwy::TargetName(HWY_TARGET),
          blend_rows,
          gather_row,
          ycc_to_rgb,
          normalize_values<float>,
          normalize_values<uint16_t>,
          normalize_planes<float>,
          normalize_planes<uint16_t>};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace saturate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace saturate {

HWY_EXPORT(kernels);

const FastKernels& fast_kernels() {
  static const FastKernels best = HWY_DYNAMIC_DISPATCH(kernels)();
  return best;
}

std::vector<FastKernels> all_fast_kernels() {
  return all_targets(
      plain_fast_kernels(), [] { return HWY_DYNAMIC_DISPATCH(kernels)(); },
      &FastKernels::blend_rows);
}

}  // namespace saturate
#endif
