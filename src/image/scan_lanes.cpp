// Reads the MCUs of one or two places in a baseline scan.
#include <algorithm>
#include <cstring>

#include "image/baseline_scan.h"

namespace saturate {
namespace {

const bool kHasBmi2 = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("bmi2") != 0;
}();

}  // namespace

// Transforms the MCUs of the chunk that were read, and clears them. A DC coefficient need not be
// cleared: each block stores its own.
void BaselineScan::transform(Lane& lane) {
  const int count = lane.mcu - lane.chunk;
  for (int c = 0; c < components_; ++c) {
    const Component& component = component_[c];
    const int blocks = count * component.across;
    const size_t x =
        size_t(lane.chunk - columns_.first) * size_t(component.across * component.size);
    const size_t groups = size_t(blocks + kGroupBlocks - 1) / kGroupBlocks;
    for (int y = 0; y < component.down; ++y) {
      int16_t* const at = lane.blocks.data() + component.base + size_t(y) * component.row_values;
      component.transform(at, component.quant, blocks, rows_[c] + y * component.size, x);
      if (component.size > 1) std::memset(at, 0, groups * kGroupValues * sizeof(int16_t));
    }
  }
}

// Begins to read at the lane's next MCU; false on irregular data.
bool BaselineScan::begin(Lane& lane) {
  lane.failed = lane.failed || !enter_boundary(lane);
  lane.stop = uint32_t((std::min(next_stop(lane), lane.chunk + kChunk) - lane.chunk) * blocks_);
  return !lane.failed;
}

// Called at a stop: false at the end, and on irregular data.
bool BaselineScan::arrive(Lane& lane) {
  lane.mcu = lane.chunk + int(lane.place) / blocks_;
  if (lane.mcu == lane.end || lane.place == uint32_t(kChunk * blocks_)) {
    transform(lane);
    lane.chunk = lane.mcu;
    lane.place = 0;
  }
  return lane.mcu < lane.end && begin(lane);
}

[[gnu::always_inline]] inline void BaselineScan::begin_block(BlockReader& reader, Lane& lane) {
  const Place& place = places_[lane.place];
  reader.block = lane.blocks.data() + place.offset;
  lane.dc[place.component] += reader.begin(*place.dc, *place.ac);
}

// Called when a block is complete: false if it was the lane's last.
[[gnu::always_inline]] inline bool BaselineScan::end_block(BlockReader& reader, Lane& lane) {
  reader.block[0] = static_cast<int16_t>(lane.dc[places_[lane.place].component]);
  if (++lane.place == lane.stop) {
    lane.bits.set(reader.bits);
    lane.failed = lane.failed || reader.failed;
    if (!arrive(lane)) return false;
    reader.bits.set(lane.bits);
  }
  begin_block(reader, lane);
  return true;
}

template <bool kWide, bool kReduced>
[[gnu::always_inline]] inline bool BaselineScan::turn(BlockReader& reader, const Lane& lane) {
  if constexpr (kReduced)
    if (places_[lane.place].dc_alone) return reader.turn<false, kWide>();
  return reader.turn<true, kWide>();
}

template <bool kTwo, bool kWide, bool kReduced>
[[gnu::always_inline]] inline void BaselineScan::read_blocks(Lane& a, Lane& b) {
  BlockReader first, second;
  first.bits.set(a.bits);
  begin_block(first, a);
  if constexpr (kTwo) {
    second.bits.set(b.bits);
    begin_block(second, b);
    while (true) {
      if (turn<kWide, kReduced>(first, a) && !end_block(first, a)) break;
      if (turn<kWide, kReduced>(second, b) && !end_block(second, b)) {
        while (!turn<kWide, kReduced>(first, a) || end_block(first, a)) {
        }
        return;
      }
    }
    while (!turn<kWide, kReduced>(second, b) || end_block(second, b)) {
    }
  } else {
    while (!turn<kWide, kReduced>(first, a) || end_block(first, a)) {
    }
  }
}

template <bool kReduced>
[[gnu::always_inline]] inline void BaselineScan::read_either(Lane& a, Lane* b) {
  if (b) return read_blocks<true, false, kReduced>(a, *b);
  return is_wide_ ? read_blocks<false, true, kReduced>(a, a)
                  : read_blocks<false, false, kReduced>(a, a);
}

// Functions of their own, so that the loops of unreduced images are compiled without the others.
[[gnu::target("bmi2")]] void BaselineScan::read_blocks_bmi2(Lane& a, Lane* b) {
  read_either<false>(a, b);
}

void BaselineScan::read_blocks_plain(Lane& a, Lane* b) {
  read_either<false>(a, b);
}

[[gnu::target("bmi2")]] void BaselineScan::read_reduced_bmi2(Lane& a, Lane* b) {
  read_either<true>(a, b);
}

void BaselineScan::read_reduced_plain(Lane& a, Lane* b) {
  read_either<true>(a, b);
}

bool BaselineScan::read_lanes(Lane& a, Lane* b) {
  for (Lane* lane : {&a, b}) {
    if (!lane) continue;
    lane->chunk = lane->mcu;
    lane->place = 0;
    lane->failed = false;
    if (!begin(*lane)) return false;
  }
  if (is_reduced_)
    kHasBmi2 ? read_reduced_bmi2(a, b) : read_reduced_plain(a, b);
  else
    kHasBmi2 ? read_blocks_bmi2(a, b) : read_blocks_plain(a, b);
  return !a.failed && !(b && b->failed);
}

template <bool kWide>
[[gnu::always_inline]] inline bool BaselineScan::parse_blocks(Lane& lane, int mcus) {
  BlockReader reader;
  reader.bits.set(lane.bits);
  for (int mcu = 0; mcu < mcus; ++mcu) {
    for (int i = 0; i < blocks_; ++i) {
      const Place& place = places_[size_t(i)];
      lane.dc[place.component] += reader.begin(*place.dc, *place.ac);
      while (!reader.turn<false, kWide>()) {
      }
    }
  }
  lane.bits.set(reader.bits);
  return !reader.failed;
}

[[gnu::target("bmi2")]] bool BaselineScan::parse_bmi2(Lane& lane, int mcus) {
  return is_wide_ ? parse_blocks<true>(lane, mcus) : parse_blocks<false>(lane, mcus);
}

bool BaselineScan::parse_plain(Lane& lane, int mcus) {
  return is_wide_ ? parse_blocks<true>(lane, mcus) : parse_blocks<false>(lane, mcus);
}

bool BaselineScan::parse(Lane& lane, int mcus) {
  return kHasBmi2 ? parse_bmi2(lane, mcus) : parse_plain(lane, mcus);
}

// Parses MCUs up to `end`.
bool BaselineScan::skip_to(Lane& lane, int end) {
  lane.end = end;
  while (lane.mcu < end) {
    if (!enter_boundary(lane)) return false;
    const int stop = next_stop(lane);
    if (!parse(lane, stop - lane.mcu)) return false;
    lane.mcu = stop;
  }
  return true;
}

}  // namespace saturate
