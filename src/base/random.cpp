#include "saturate/data/random.h"

#include <cmath>
#include <numbers>

namespace saturate {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // Multipliers and Weyl increments of the paper, section 4.
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// [draw, index low, index high ^ use << 24, epoch]: no two named streams overlap, as an index never
// sets the bits that it shares with the use.
RandomStream::RandomStream(uint64_t seed, uint32_t epoch, uint64_t index, RandomUse use)
    : key_{uint32_t(seed), uint32_t(seed >> 32)},
      counter_{0, uint32_t(index), uint32_t(index >> 32) ^ (uint32_t(use) << 24), epoch} {}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    block_ = philox4x32(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return block_[size_t(used_++)];
}

uint64_t RandomStream::next_u64() {
  const uint64_t low = next_u32();
  return low | uint64_t(next_u32()) << 32;
}

float RandomStream::next_float() {
  return float(next_u32() >> 8) * 0x1p-24f;
}

double RandomStream::next_double() {
  return double(next_u64() >> 11) * 0x1p-53;
}

uint64_t RandomStream::below(uint64_t bound) {
  // Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), 2019.
  __extension__ using u128 = unsigned __int128;
  u128 product = u128(next_u64()) * bound;
  if (uint64_t(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (uint64_t(product) < threshold) product = u128(next_u64()) * bound;
  }
  return uint64_t(product >> 64);
}

double RandomStream::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - next_double()));
  return radius * std::cos(2 * std::numbers::pi * next_double());
}

}  // namespace saturate
