// SPDX-License-Identifier: BSD-3-Clause
// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC'11). A stream is identified by its purpose, not by who draws it, so a sample gets
// the same numbers for any number of threads, device and world size.
#pragma once

#include <array>
#include <cstdint>

namespace saturate {

// One Philox 4x32-10 block: a bijection of `counter` under `key`.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The purpose of a random stream. The values are part of a seed's meaning: append only.
enum class RandomUse : uint32_t {
  kShuffle = 0,
  kAugment = 1,
  kSynthetic = 2,
  kInit = 3,
  kAffine = 4,
  kPolicy = 5,
  kBrightness = 6,
  kContrast = 7,
  kSaturation = 8,
  kHue = 9,
  kGrey = 10,
  kBlur = 11,
  kErase = 12,
  kMix = 13,
  kFlip = 14,
  kTextTable = 15,
  kGenerate = 16,
  kGamma = 17,
  // RandomUse(100) + EffectKind: SampleKey::stream() of an effect (effects.h).
  // RandomUse(1000) to RandomUse(1023) are free for programs that use the library. Numbers that are
  // equal modulo 256 draw the same.
};

// A sequence of draws keyed by (seed, epoch, index, use). Cheap to construct, a value type; not for
// concurrent use.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint32_t epoch, uint64_t index, RandomUse use);

  uint32_t next_u32();
  uint64_t next_u64();
  // Uniform in [0, 1), 24 and 53 random bits.
  float next_float();
  double next_double();
  // Uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * next_double(); }
  // Uniform integer in [0, bound) without modulo bias (Lemire 2019). REQUIRES: bound > 0.
  uint64_t below(uint64_t bound);
  // Standard normal (Box-Muller).
  double normal();
  bool bernoulli(double probability) { return next_double() < probability; }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;  // words of block_ already handed out
};

}  // namespace saturate
