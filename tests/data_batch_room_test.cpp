// Places of packed JPEGs in a batch's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "data/batch_room.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

constexpr size_t kPixels = 300;  // five units

struct Memory {
  alignas(64) std::byte bytes[64];
};

TEST(BatchRoom, ALargeSampleTakesWhatEarlierOnesLeave) {
  Memory memory;
  BatchRoom room;
  room.begin(memory.bytes, 4, kPixels);
  EXPECT_FALSE(room.take(321)) << "nothing is left yet";
  EXPECT_EQ(room.take(64).value().at, 0u);
  EXPECT_FALSE(room.take(641)) << "its own five units and four others";
  const PackedPlace large = room.take(576).value();
  EXPECT_EQ(large.at, 1u);
  EXPECT_EQ(large.bytes, 576u);
  EXPECT_FALSE(room.take(321));
  EXPECT_EQ(room.take(320).value().at, 10u);
  const PackedPlace last = room.take_pixels();
  EXPECT_EQ(last.at, 15u);
  EXPECT_EQ(last.bytes, 0u);
  EXPECT_EQ(room.address(last), memory.bytes + 15 * 64);
  EXPECT_FALSE(room.take(1)) << "all samples have a place";
  room.begin(memory.bytes, 1, kPixels);
  EXPECT_EQ(room.take_pixels().at, 0u);
}

TEST(BatchRoom, MuchLargerJpegsThanThePixelsHaveNoPlace) {
  Memory memory;
  BatchRoom room;
  room.begin(memory.bytes, 100, kPixels);
  for (int i = 0; i < 50; ++i) room.take(1);
  EXPECT_FALSE(room.take(BatchRoom::kMostPixels * whole_units(kPixels) + 1));
  EXPECT_TRUE(room.take(BatchRoom::kMostPixels * whole_units(kPixels)));
}

// Whatever other threads take, pixels fit, and no two places overlap.
TEST(BatchRoom, PlacesOfThreadsAreApartAndPixelsAlwaysFit) {
  constexpr size_t kThreads = 4, kEach = 500, kSamples = kThreads * kEach;
  Memory memory;
  BatchRoom room;
  for (uint64_t round = 0; round < 20; ++round) {
    room.begin(memory.bytes, kSamples, kPixels);
    std::vector<PackedPlace> places(kSamples);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        RandomStream random(round, 0, t, RandomUse::kSynthetic);
        for (size_t i = 0; i < kEach; ++i) {
          const auto packed = room.take(1 + random.below(random.below(3) ? 250 : 1300));
          places[t * kEach + i] = packed ? *packed : room.take_pixels();
        }
      });
    for (std::thread& thread : threads) thread.join();
    std::ranges::sort(places, {}, &PackedPlace::at);
    size_t end = 0;
    for (const PackedPlace& place : places) {
      ASSERT_EQ(place.at * PackedPlace::kUnit, end) << "a gap, or two samples";
      end += whole_units(place.bytes == 0 ? kPixels : place.bytes);
    }
    EXPECT_LE(end, kSamples * whole_units(kPixels));
    EXPECT_GT(std::ranges::count_if(places, [](const auto& p) { return p.bytes > kPixels; }), 100);
  }
}

}  // namespace
}  // namespace saturate
