// Splits a range of memory into aligned chunks that a GPU loads or stores in one access, and single
// values before and after them.
#pragma once

#include <cstdint>

#include "saturate/data/pixel.h"

namespace saturate {

// The bytes of one access. REQUIRES: aligned to kBytes.
template <int kBytes>
struct [[gnu::may_alias]] alignas(kBytes) Piece {
  uint32_t word[kBytes / 4];  // the lowest byte first
};
constexpr int kWidestAccess = 16;  // bytes

template <int kBytes>
SATURATE_HOST_DEVICE inline Piece<kBytes> load_piece(const void* from) {
  return *static_cast<const Piece<kBytes>*>(from);
}
template <int kBytes>
SATURATE_HOST_DEVICE inline void store_piece(const Piece<kBytes>& piece, void* to) {
  *static_cast<Piece<kBytes>*>(to) = piece;
}
// Byte k of a piece.
template <int kBytes>
SATURATE_HOST_DEVICE inline uint8_t byte_of(const Piece<kBytes>& piece, int k) {
  return static_cast<uint8_t>(piece.word[k / 4] >> 8 * (k % 4));
}

SATURATE_HOST_DEVICE inline bool is_multiple(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<unsigned>(bytes) == 0;
}
// Bytes from `pointer` to the next multiple of kWidestAccess.
SATURATE_HOST_DEVICE inline int bytes_before(const void* pointer) {
  return static_cast<int>(-reinterpret_cast<uintptr_t>(pointer) % kWidestAccess);
}

// Divides values [0, count) among a team: chunk(i) for values [i, i + kValues), the first chunk
// starting at `head`, and one(i) for each value before the first and after the last chunk.
template <int kValues, class Team, class One, class Chunk>
SATURATE_HOST_DEVICE void in_chunks(const Team& team, int count, int head, const One& one,
                                    const Chunk& chunk) {
  const int first = head < count ? head : count;
  const int last = first + (count - first) / kValues * kValues;
  for (int i = team.first(); i < first; i += team.step()) one(i);
  for (int i = first + team.first() * kValues; i < last; i += team.step() * kValues) chunk(i);
  for (int i = last + team.first(); i < count; i += team.step()) one(i);
}

}  // namespace saturate
