#include "image/blend.h"

#include <algorithm>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace saturate {
namespace {

uint8_t rounded_level(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::min(sum >> precision, 255));
}

}  // namespace

void blend_rows_plain(const BlendFilter& filter, const uint8_t* in, size_t stride, uint8_t* out,
                      int n) {
  for (int x = 0; x < n; ++x) {
    int32_t sum = 1 << (filter.precision - 1);
    const uint8_t* from = in + x;
    for (int k = 0; k < filter.taps; ++k, from += stride) sum += filter.weight[k] * *from;
    out[x] = rounded_level(sum, filter.precision);
  }
}

void blend_pixels_plain(const BlendFilter& filter, const uint8_t* row, const int* first,
                        uint8_t* out, int n) {
  const int16_t* weight = filter.weight;
  for (int i = 0; i < n; ++i, weight += filter.pitch, out += 3) {
    const uint8_t* from = row + ptrdiff_t{first[i]} * 3;
    for (int c = 0; c < 3; ++c) {
      int32_t sum = 1 << (filter.precision - 1);
      for (int k = 0; k < filter.taps; ++k) sum += weight[k] * from[k * 3 + c];
      out[c] = rounded_level(sum, filter.precision);
    }
  }
}

#ifdef __x86_64__

namespace {

constexpr int kBlock = 16;  // values blended at a time

// Two neighbouring weights as one 32-bit lane, for the multiply-and-add-pairs instruction.
int32_t weight_pair(const int16_t* weight) {
  int32_t pair;
  std::memcpy(&pair, weight, sizeof pair);
  return pair;
}

[[gnu::target("avx2")]] void blend_block_avx2(const BlendFilter& filter, const uint8_t* in,
                                              size_t stride, uint8_t* out) {
  __m256i low = _mm256_set1_epi32(1 << (filter.precision - 1)), high = low;
  for (int k = 0; k < filter.taps; k += 2, in += 2 * stride) {
    // An odd last row is paired with itself, with weight 0.
    const uint8_t* below = k + 1 < filter.taps ? in + stride : in;
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(below));
    const __m256i pair = _mm256_set1_epi32(weight_pair(filter.weight + k));
    const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
    const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(first, pair));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(second, pair));
  }
  const __m128i shift = _mm_cvtsi32_si128(filter.precision);
  low = _mm256_sra_epi32(low, shift);
  high = _mm256_sra_epi32(high, shift);
  // Packing works within 128-bit halves; the permutation puts the quarters back in order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  const __m128i levels =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), levels);
}

[[gnu::target("avx2")]] void blend_rows_avx2(const BlendFilter& filter, const uint8_t* in,
                                             size_t stride, uint8_t* out, int n) {
  if (n < kBlock) return blend_rows_plain(filter, in, stride, out, n);
  for (int x = 0; x + kBlock <= n; x += kBlock) blend_block_avx2(filter, in + x, stride, out + x);
  // The remainder is a whole block that overlaps the previous one.
  if (n % kBlock != 0) blend_block_avx2(filter, in + n - kBlock, stride, out + n - kBlock);
}

[[gnu::target("avx2")]] void blend_pixels_avx2(const BlendFilter& filter, const uint8_t* row,
                                               const int* first, uint8_t* out, int n) {
  // Two pixels rgbRGB become the 16-bit pairs (r, R) (g, G) (b, B) and zeros.
  const __m128i interleave =
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  const __m128i half = _mm_set1_epi32(1 << (filter.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(filter.precision);
  const int16_t* weight = filter.weight;
  for (int i = 0; i < n; ++i, weight += filter.pitch, out += 3) {
    __m128i sum = half;
    const uint8_t* from = row + ptrdiff_t{first[i]} * 3;
    for (int k = 0; k < filter.pitch; k += 2, from += 6) {
      const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      const __m128i pairs = _mm_shuffle_epi8(two, interleave);
      const __m128i weights = _mm_set1_epi32(weight_pair(weight + k));
      sum = _mm_add_epi32(sum, _mm_madd_epi16(pairs, weights));
    }
    sum = _mm_sra_epi32(sum, shift);
    sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
    const int32_t levels = _mm_cvtsi128_si32(sum);
    std::memcpy(out, &levels, 3);
  }
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

}  // namespace

#endif

void blend_rows(const BlendFilter& filter, const uint8_t* in, size_t stride, uint8_t* out, int n) {
#ifdef __x86_64__
  if (has_avx2()) return blend_rows_avx2(filter, in, stride, out, n);
#endif
  blend_rows_plain(filter, in, stride, out, n);
}

void blend_pixels(const BlendFilter& filter, const uint8_t* row, const int* first, uint8_t* out,
                  int n) {
#ifdef __x86_64__
  if (has_avx2()) return blend_pixels_avx2(filter, row, first, out, n);
#endif
  blend_pixels_plain(filter, row, first, out, n);
}

}  // namespace saturate
