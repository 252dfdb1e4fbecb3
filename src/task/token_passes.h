// The loss of a language model and its gradient, one pass over the logits for either. Each row is
// computed by one team of threads. Compiled by nvcc too. Team: as in image/effect_passes.h, of a
// power of two threads, at most kTokenThreads.
#pragma once

#include <cmath>

#include "image/effect_passes.h"
#include "task/token_rows.h"

namespace saturate {

constexpr int kTokenThreads = 512;

// A team's memory: what each thread has found.
struct TokenState {
  float peak[kTokenThreads], sum[kTokenThreads];
  uint32_t larger;
};

SATURATE_HOST_DEVICE inline float pass_exp(float x) {
#ifdef __CUDA_ARCH__
  return __expf(x);  // to 2 + |1.2 x| units in the last place
#else
  return std::exp(x);
#endif
}

// ---- Values ------------------------------------------------------------------------------------

SATURATE_HOST_DEVICE inline float from_float16(uint32_t bits) {
  const uint32_t size = bits & 0x7fff;
  const float value =
      size < 0x7c00 ? float_of_bits(size << 13) * 0x1p112f : float_of_bits(size << 13 | 0x7f800000);
  return (bits & 0x8000) != 0 ? -value : value;
}

template <LogitType kType>
constexpr int kLogitBytes = kType == LogitType::kFloat32 ? 4 : 2;

template <LogitType kType>
SATURATE_HOST_DEVICE inline float logit_of_bits(uint32_t bits) {
  if constexpr (kType == LogitType::kFloat32) return float_of_bits(bits);
  if constexpr (kType == LogitType::kBfloat16) return float_of_bits(bits << 16);
  return from_float16(bits & 0xffff);
}

// The bits of any value, also of NaN.
template <LogitType kType>
SATURATE_HOST_DEVICE inline uint32_t bits_of_logit(float value) {
  if constexpr (kType == LogitType::kFloat32) return bits_of_float(value);
  if (value != value) return 0x7fff;
  if constexpr (kType == LogitType::kBfloat16) return to_bfloat16(value);
  return to_float16(value);
}

template <LogitType kType>
SATURATE_HOST_DEVICE inline float logit_at(const void* row, int64_t i) {
  if constexpr (kType == LogitType::kFloat32) return static_cast<const float*>(row)[i];
  return logit_of_bits<kType>(static_cast<const uint16_t*>(row)[i]);
}

// Calls some(i, values, n) for consecutive pieces of a row: n values from value i on.
template <LogitType kType, class Team, class Some>
SATURATE_HOST_DEVICE void each_logits(const Team& team, const void* row, int classes,
                                      const Some& some) {
  constexpr int kBytes = kLogitBytes<kType>, kValues = kWidestAccess / kBytes;
  in_chunks<kValues>(
      team, classes, bytes_before(row) / kBytes,
      [&](int i) {
        const float value[1] = {logit_at<kType>(row, i)};
        some(i, value, 1);
      },
      [&](int i) {
        const auto piece =
            load_piece<kWidestAccess>(static_cast<const uint8_t*>(row) + ptrdiff_t{i} * kBytes);
        float values[kValues];
        for (int k = 0; k < kValues; ++k)
          values[k] = logit_of_bits<kType>(piece.word[k * kBytes / 4] >> 8 * (k * kBytes % 4));
        some(i, values, kValues);
      });
}

// ---- Rows --------------------------------------------------------------------------------------

// Sums of exponentials, relative to the largest value so far.
struct PeakSum {
  float peak = -3.4028235e38f, sum = 0;  // the lowest finite peak, so that logits of -inf add 0

  SATURATE_HOST_DEVICE void raise_to(float higher) {
    if (!(higher > peak)) return;
    sum *= pass_exp(peak - higher);
    peak = higher;
  }
  SATURATE_HOST_DEVICE void add(const PeakSum& other) {
    raise_to(other.peak);
    sum += other.sum * pass_exp(other.peak - peak);
  }
};

template <LogitType kType, class Team>
SATURATE_HOST_DEVICE PeakSum sum_exponentials(const Team& team, const void* row, int classes,
                                              TokenState& state) {
  PeakSum own;
  each_logits<kType>(team, row, classes, [&](int, const float* values, int n) {
    float peak = values[0];
    for (int k = 1; k < n; ++k) peak = values[k] > peak ? values[k] : peak;
    own.raise_to(peak);
    for (int k = 0; k < n; ++k) own.sum += pass_exp(values[k] - own.peak);
  });
  const int me = team.first();
  state.peak[me] = own.peak;
  state.sum[me] = own.sum;
  for (int others = team.step() / 2; others > 0; others /= 2) {
    team.wait();
    if (me >= others) continue;
    own.add({state.peak[me + others], state.sum[me + others]});
    state.peak[me] = own.peak;
    state.sum[me] = own.sum;
  }
  return own;  // of all values in thread 0
}

// Whether a value before the label is at least as large as the label's, or one after it larger.
template <LogitType kType, class Team>
SATURATE_HOST_DEVICE bool has_larger(const Team& team, const void* row, int classes, int label) {
  const float own = logit_at<kType>(row, label);
  bool larger = own != own;
  each_logits<kType>(team, row, classes, [&](int i, const float* values, int n) {
    for (int k = 0; k < n; ++k)
      larger |= i + k < label ? !(values[k] < own) : i + k > label && !(values[k] <= own);
  });
  return larger;
}

template <LogitType kType, class Team>
SATURATE_HOST_DEVICE void sum_row_of(const Team& team, const TokenRows& rows, int64_t index,
                                     const TokenSums& to, TokenState& state) {
  const void* const row =
      static_cast<const uint8_t*>(rows.logits) + index * rows.stride * kLogitBytes<kType>;
  const int64_t label = rows.labels[index];
  const bool is_class = label >= 0 && label < rows.classes;
  if (to.hits != nullptr) {
    if (team.first() == 0) state.larger = is_class ? 0 : 1;
    team.wait();
    if (is_class && has_larger<kType>(team, row, rows.classes, static_cast<int>(label)))
      team.increment(state.larger);
    team.wait();
    if (team.first() == 0) to.hits[index] = state.larger == 0 ? 1 : 0;
  }
  if (to.losses == nullptr) return;
  const PeakSum all = sum_exponentials<kType>(team, row, rows.classes, state);
  if (team.first() != 0) return;
  const float log_sum = std::log(all.sum);
  to.peaks[index] = all.peak;
  to.log_sums[index] = log_sum;
  to.losses[index] = label < 0  ? 0
                     : is_class ? log_sum - (logit_at<kType>(row, label) - all.peak)
                                : float_of_bits(0x7fc00000);
}

template <class Team>
SATURATE_HOST_DEVICE void sum_row(const Team& team, const TokenRows& rows, int64_t index,
                                  const TokenSums& to, TokenState& state) {
  if (rows.type == LogitType::kBfloat16)
    sum_row_of<LogitType::kBfloat16>(team, rows, index, to, state);
  else if (rows.type == LogitType::kFloat16)
    sum_row_of<LogitType::kFloat16>(team, rows, index, to, state);
  else
    sum_row_of<LogitType::kFloat32>(team, rows, index, to, state);
}

template <LogitType kType, class Team>
SATURATE_HOST_DEVICE void row_gradient_of(const Team& team, const TokenRows& rows, int64_t index,
                                          const TokenSums& from, float factor, void* gradient) {
  constexpr int kBytes = kLogitBytes<kType>;
  const ptrdiff_t begin = index * rows.stride * kBytes;
  const void* const row = static_cast<const uint8_t*>(rows.logits) + begin;
  uint8_t* const out = static_cast<uint8_t*>(gradient) + begin;
  const float peak = from.peaks[index], log_sum = from.log_sums[index];
  const int64_t label = rows.labels[index];
  const float scale = label < rows.classes ? factor : float_of_bits(0x7fc00000);
  const auto bits_at = [&](int i, float value) {
    const float share = pass_exp(value - peak - log_sum);
    return bits_of_logit<kType>((i == label ? share - 1 : share) * scale);
  };
  const auto one = [&](int i, float value) {
    if constexpr (kBytes == 4)
      reinterpret_cast<float*>(out)[i] = float_of_bits(bits_at(i, value));
    else
      reinterpret_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(bits_at(i, value));
  };
  const bool fits = bytes_before(row) == bytes_before(out);
  each_logits<kType>(team, row, rows.classes, [&](int i, const float* values, int n) {
    if (n == 1 || !fits) {
      for (int k = 0; k < n; ++k) one(i + k, values[k]);
      return;
    }
    Piece<kWidestAccess> piece{};
    for (int k = 0; k < kWidestAccess / kBytes; ++k)
      piece.word[k * kBytes / 4] |= bits_at(i + k, values[k]) << 8 * (k * kBytes % 4);
    store_piece(piece, out + ptrdiff_t{i} * kBytes);
  });
}

template <class Team>
SATURATE_HOST_DEVICE void row_gradient(const Team& team, const TokenRows& rows, int64_t index,
                                       const TokenSums& from, float factor, void* gradient) {
  if (rows.type == LogitType::kBfloat16)
    row_gradient_of<LogitType::kBfloat16>(team, rows, index, from, factor, gradient);
  else if (rows.type == LogitType::kFloat16)
    row_gradient_of<LogitType::kFloat16>(team, rows, index, from, factor, gradient);
  else
    row_gradient_of<LogitType::kFloat32>(team, rows, index, from, factor, gradient);
}

}  // namespace saturate
