// The inverse DCT of groups of four blocks, at full or reduced size, bit-identical to libjpeg's
// jidctint and jidctred as its SIMD computes them (in 16 and 32 bits).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace saturate {

// Blocks side by side form groups of four: coefficient (row v, column u) of block b is at
// [b / 4][v][b % 4][u], so that one vector can hold a row of several blocks.
constexpr int kGroupBlocks = 4;
constexpr int kGroupRow = kGroupBlocks * 8;  // values of a row of a group
constexpr int kGroupValues = kGroupRow * 8;  // values of a group

struct alignas(64) GroupRow {
  int16_t value[kGroupRow];
};

// Dequantises `count` blocks that lie side by side, transforms them and writes their samples:
// rows[y][x + b * size + ...], y in [0, size). `groups` is aligned to 64 bytes; `quant`: [8][8].
using InverseDct = void (*)(const int16_t* groups, const uint16_t* quant, int count,
                            uint8_t* const* rows, size_t x);

// For blocks of `size` x `size` samples: 1, 2, 4 or 8. The fastest version that this CPU supports.
InverseDct inverse_dct(int size);
InverseDct plain_inverse_dct(int size);
// All versions that this CPU supports, by the instruction set's name, for tests.
std::vector<std::pair<const char*, InverseDct>> all_inverse_dcts(int size);

}  // namespace saturate
