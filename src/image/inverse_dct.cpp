// Compiled once for each instruction set, like fast_simd.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "image/inverse_dct.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "image/inverse_dct.h"

#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace saturate {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

InverseDct inverse_of_size(int size) {
  return plain_inverse_dct(size);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
// Vectors of 1, 2 or 4 blocks: each 128-bit part holds a row or column of one block.
using Words = hn::CappedTag<int16_t, kGroupRow>;
using Wide = hn::Repartition<int32_t, Words>;
using Pairs = hn::Repartition<int64_t, Words>;
using Word = hn::Vec<Words>;
using WideWord = hn::Vec<Wide>;

// Factors in units of 2^-13, the constants of Loeffler, Ligtenberg and Moschytz's transform.
constexpr int kFixed = 13, kKept = 2;  // bits after the point: of factors, and between the passes

// 32-bit halves of a vector of 16-bit values.
struct Sum {
  WideWord low, high;
};
HWY_INLINE Sum add(const Sum& a, const Sum& b) {
  return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
}
HWY_INLINE Sum subtract(const Sum& a, const Sum& b) {
  return {hn::Sub(a.low, b.low), hn::Sub(a.high, b.high)};
}

// a * first + b * second.
HWY_INLINE Sum combine(Word a, Word b, int16_t first, int16_t second) {
  const Words words;
  const Wide wide;
  const auto factors = hn::InterleaveLower(words, hn::Set(words, first), hn::Set(words, second));
  const auto zero = hn::Zero(wide);
  auto unused = hn::Zero(wide);
  return {
      hn::ReorderWidenMulAccumulate(wide, hn::InterleaveLower(words, a, b), factors, zero, unused),
      hn::ReorderWidenMulAccumulate(wide, hn::InterleaveUpper(words, a, b), factors, zero, unused)};
}

// Divides by 2^kShift, rounding.
template <int kShift>
HWY_INLINE Word narrow(const Sum& sum) {
  const Words words;
  const Wide wide;
  const auto half = hn::Set(wide, 1 << (kShift - 1));
  return hn::ReorderDemote2To(words, hn::ShiftRight<kShift>(hn::Add(sum.low, half)),
                              hn::ShiftRight<kShift>(hn::Add(sum.high, half)));
}

// One pass over eight values each of all lanes.
template <int kShift>
HWY_INLINE void transform8(Word (&v)[8]) {
  const Sum even2 = combine(v[2], v[6], 4433, 4433 - 15137);
  const Sum even3 = combine(v[2], v[6], 4433 + 6270, 4433);
  const Sum even0 = combine(v[0], v[4], 8192, 8192), even1 = combine(v[0], v[4], 8192, -8192);
  const Sum sum0 = add(even0, even3), sum3 = subtract(even0, even3);
  const Sum sum1 = add(even1, even2), sum2 = subtract(even1, even2);
  const Word z3 = hn::Add(v[7], v[3]), z4 = hn::Add(v[5], v[1]);
  const Sum both3 = combine(z3, z4, 9633 - 16069, 9633), both4 = combine(z3, z4, 9633, 9633 - 3196);
  const Sum odd0 = add(combine(v[7], v[1], 2446 - 7373, -7373), both3);
  const Sum odd3 = add(combine(v[7], v[1], -7373, 12299 - 7373), both4);
  const Sum odd1 = add(combine(v[5], v[3], 16819 - 20995, -20995), both4);
  const Sum odd2 = add(combine(v[5], v[3], -20995, 25172 - 20995), both3);
  v[0] = narrow<kShift>(add(sum0, odd3));
  v[7] = narrow<kShift>(subtract(sum0, odd3));
  v[1] = narrow<kShift>(add(sum1, odd2));
  v[6] = narrow<kShift>(subtract(sum1, odd2));
  v[2] = narrow<kShift>(add(sum2, odd1));
  v[5] = narrow<kShift>(subtract(sum2, odd1));
  v[3] = narrow<kShift>(add(sum3, odd0));
  v[4] = narrow<kShift>(subtract(sum3, odd0));
}

// To four values, of which v[4] has no part.
template <int kShift>
HWY_INLINE void transform4(Word (&v)[8]) {
  const Words words;
  const Sum even = combine(v[0], hn::Zero(words), 1 << 14, 0);
  const Sum even2 = combine(v[2], v[6], 15137, -6270);
  const Sum sum0 = add(even, even2), sum2 = subtract(even, even2);
  const Sum odd0 = add(combine(v[7], v[5], -1730, 11893), combine(v[3], v[1], -17799, 8697));
  const Sum odd2 = add(combine(v[7], v[5], -4176, -4926), combine(v[3], v[1], 7373, 20995));
  v[0] = narrow<kShift + 1>(add(sum0, odd2));
  v[3] = narrow<kShift + 1>(subtract(sum0, odd2));
  v[1] = narrow<kShift + 1>(add(sum2, odd0));
  v[2] = narrow<kShift + 1>(subtract(sum2, odd0));
}

// To two values, of v[0] and the odd ones.
template <int kShift>
HWY_INLINE void transform2(Word (&v)[8]) {
  const Sum even = combine(v[0], v[0], 1 << 14, 1 << 14);
  const Sum odd = add(combine(v[7], v[5], -5906, 6967), combine(v[3], v[1], -10426, 29692));
  v[0] = narrow<kShift + 2>(add(even, odd));
  v[1] = narrow<kShift + 2>(subtract(even, odd));
}

template <int kSize, int kShift>
HWY_INLINE void transform(Word (&v)[8]) {
  if constexpr (kSize == 8) transform8<kShift>(v);
  if constexpr (kSize == 4) transform4<kShift>(v);
  if constexpr (kSize == 2) transform2<kShift>(v);
}

// Exchanges rows and columns of each block.
HWY_INLINE void transpose(Word (&v)[8]) {
  const Words words;
  const Wide wide;
  const Pairs pairs;
  Word a[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = hn::InterleaveLower(words, v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = hn::InterleaveUpper(words, v[2 * i], v[2 * i + 1]);
  }
  WideWord b[8];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const auto top = hn::BitCast(wide, a[4 * i + j]),
                 bottom = hn::BitCast(wide, a[4 * i + 2 + j]);
      b[4 * i + 2 * j] = hn::InterleaveLower(wide, top, bottom);
      b[4 * i + 2 * j + 1] = hn::InterleaveUpper(wide, top, bottom);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const auto left = hn::BitCast(pairs, b[i]), right = hn::BitCast(pairs, b[4 + i]);
    v[2 * i] = hn::BitCast(words, hn::InterleaveLower(pairs, left, right));
    v[2 * i + 1] = hn::BitCast(words, hn::InterleaveUpper(pairs, left, right));
  }
}

// Two columns as bytes in words: rows of the first in the low bytes, of the second in the high
// ones.
HWY_INLINE Word join(Word first, Word second) {
  const Words words;
  const auto centre = hn::Set(words, 128), most = hn::Set(words, 255);
  const auto level = [&](Word value) {
    return hn::Min(hn::Max(hn::SaturatedAdd(value, centre), hn::Zero(words)), most);
  };
  return hn::Or(level(first), hn::ShiftLeft<8>(level(second)));
}

// Stores rows y and y + 1, each the lower or upper eight bytes of every block.
HWY_INLINE void store_pair(WideWord rows_of_blocks, uint8_t* const* out, int y, size_t x) {
  const Pairs pairs;
  const hn::Repartition<uint8_t, Pairs> bytes;
  const hn::Half<decltype(bytes)> half;
  const auto both = hn::BitCast(pairs, rows_of_blocks);
  const auto even = hn::BitCast(bytes, hn::ConcatEven(pairs, both, both));
  const auto odd = hn::BitCast(bytes, hn::ConcatOdd(pairs, both, both));
  hn::StoreU(hn::LowerHalf(half, even), half, out[y] + x);
  hn::StoreU(hn::LowerHalf(half, odd), half, out[y + 1] + x);
}

// v: columns of the samples.
HWY_INLINE void store8(const Word (&v)[8], uint8_t* const* out, size_t x) {
  const Words words;
  const Wide wide;
  const Word columns01 = join(v[0], v[1]), columns23 = join(v[2], v[3]);
  const Word columns45 = join(v[4], v[5]), columns67 = join(v[6], v[7]);
  const auto left_top = hn::BitCast(wide, hn::InterleaveLower(words, columns01, columns23));
  const auto left_bottom = hn::BitCast(wide, hn::InterleaveUpper(words, columns01, columns23));
  const auto right_top = hn::BitCast(wide, hn::InterleaveLower(words, columns45, columns67));
  const auto right_bottom = hn::BitCast(wide, hn::InterleaveUpper(words, columns45, columns67));
  store_pair(hn::InterleaveLower(wide, left_top, right_top), out, 0, x);
  store_pair(hn::InterleaveUpper(wide, left_top, right_top), out, 2, x);
  store_pair(hn::InterleaveLower(wide, left_bottom, right_bottom), out, 4, x);
  store_pair(hn::InterleaveUpper(wide, left_bottom, right_bottom), out, 6, x);
}

// The reduced sizes, of which a picture has few samples.
template <int kSize>
HWY_INLINE void store_reduced(const Word (&v)[8], uint8_t* const* out, size_t x) {
  const Words words;
  alignas(64) int16_t column[kSize][hn::MaxLanes(Words())];
  for (int u = 0; u < kSize; ++u) hn::Store(v[u], words, column[u]);
  for (size_t block = 0; block < hn::Lanes(words) / 8; ++block)
    for (size_t y = 0; y < kSize; ++y)
      for (size_t u = 0; u < kSize; ++u) {
        const int level = column[u][block * 8 + y] + 128;
        out[y][x + block * kSize + u] = uint8_t(level < 0 ? 0 : level > 255 ? 255 : level);
      }
}

// Writes all blocks of a group.
template <int kSize>
HWY_INLINE void transform_group(const int16_t* group, const Word (&quant)[8], uint8_t* const* out,
                                size_t x) {
  const Words words;
  const size_t lanes = hn::Lanes(words);
  for (size_t at = 0; at < size_t(kGroupRow); at += lanes) {
    Word v[8];
    for (size_t y = 0; y < 8; ++y)
      v[y] = hn::Mul(hn::Load(words, group + y * kGroupRow + at), quant[y]);
    transform<kSize, kFixed - kKept>(v);
    transpose(v);
    transform<kSize, kFixed + kKept + 3>(v);
    const size_t to = x + at / 8 * kSize;
    if constexpr (kSize == 8)
      store8(v, out, to);
    else
      store_reduced<kSize>(v, out, to);
  }
}

template <int kSize>
void inverse(const int16_t* groups, const uint16_t* quant, int count, uint8_t* const* rows,
             size_t x) {
  const Words words;
  Word factors[8];
  for (int y = 0; y < 8; ++y)
    factors[y] = hn::LoadDup128(words, reinterpret_cast<const int16_t*>(quant) + y * 8);
  for (; count >= kGroupBlocks; count -= kGroupBlocks, groups += kGroupValues) {
    transform_group<kSize>(groups, factors, rows, x);
    x += kGroupBlocks * kSize;
  }
  if (count == 0) return;
  // The memory right of the last block belongs to others.
  uint8_t last[kSize][kGroupBlocks * kSize];
  uint8_t* to[kSize];
  for (int y = 0; y < kSize; ++y) to[y] = last[y];
  transform_group<kSize>(groups, factors, to, 0);
  for (size_t at = 0; at < size_t(count) * kSize; at += kSize)  // copies of a constant size
    for (int y = 0; y < kSize; ++y) std::memcpy(rows[y] + x + at, last[y] + at, kSize);
}

InverseDct inverse_of_size(int size) {
  if (size == 1) return plain_inverse_dct(1);
  return size == 8 ? inverse<8> : size == 4 ? inverse<4> : inverse<2>;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace saturate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace saturate {
HWY_EXPORT(inverse_of_size);

InverseDct inverse_dct(int size) {
  return HWY_DYNAMIC_DISPATCH(inverse_of_size)(size);
}

std::vector<std::pair<const char*, InverseDct>> all_inverse_dcts(int size) {
  std::vector<std::pair<const char*, InverseDct>> all{{"plain", plain_inverse_dct(size)}};
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    all.emplace_back(hwy::TargetName(target), inverse_dct(size));
  }
  hwy::SetSupportedTargetsForTest(0);
  return all;
}

}  // namespace saturate
#endif
