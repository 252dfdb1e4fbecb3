#include "store/md5.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "store/hash_blocks.h"

namespace saturate {
namespace {

constexpr std::array<std::array<int, 4>, 4> kShifts = {
    {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}};

std::array<uint32_t, 64> make_sines() {
  std::array<uint32_t, 64> sines;
  for (size_t i = 0; i < sines.size(); ++i)
    sines[i] = uint32_t(std::floor(std::ldexp(std::abs(std::sin(double(i + 1))), 32)));
  return sines;
}

using MdState = std::array<uint32_t, 4>;

// REQUIRES: a little-endian machine, as all of this program.
void add_md_block(const std::byte* block, MdState& state) {
  static const auto sines = make_sines();
  std::array<uint32_t, 16> words;
  std::memcpy(words.data(), block, kHashBlock);
  auto [a, b, c, d] = state;
  const auto step = [&](size_t i, uint32_t mixed, size_t word) {
    const uint32_t sum = a + mixed + sines[i] + words[word % 16];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kShifts[i / 16][i % 4]);
  };
  for (size_t i = 0; i < 16; ++i) step(i, (b & c) | (~b & d), i);
  for (size_t i = 16; i < 32; ++i) step(i, (d & b) | (~d & c), 5 * i + 1);
  for (size_t i = 32; i < 48; ++i) step(i, b ^ c ^ d, 3 * i + 5);
  for (size_t i = 48; i < 64; ++i) step(i, c ^ (b | ~d), 7 * i);
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d};
}

}  // namespace

std::array<std::byte, 16> md5(std::span<const std::byte> bytes) {
  MdState state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  for_each_block(bytes, std::endian::little,
                 [&](const std::byte* block) { add_md_block(block, state); });
  return std::bit_cast<std::array<std::byte, 16>>(state);
}

std::string md5_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : md5(bytes))
    for (const int shift : {4, 0}) text += "0123456789abcdef"[int(byte) >> shift & 15];
  return text;
}

}  // namespace saturate
