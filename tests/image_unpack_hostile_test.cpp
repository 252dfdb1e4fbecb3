// Packed JPEGs with anything in them: unpacking makes pixels or zeros, and accesses nothing else;
// AddressSanitizer sees the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "image/packed_layout.h"
#include "saturate/data/random.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

using testing::header_of;
using testing::PackedSample;
using testing::Unpacked;

class HostileBytes : public ::testing::Test {
 protected:
  HostileBytes() {
    FastDecoder decoder;
    for (const testing::JpegKind& kind : testing::kPackedKinds) {
      const testing::SplitFile segments =
          testing::split_file(testing::encode_as(testing::test_picture(150, 110), kind, 50), 4);
      SegmentedJpeg jpeg;
      jpeg.open(segments.bytes, 150, 110, "x");
      good.push_back(testing::pack_sample(decoder, jpeg, {{3, 5, 140, 100}, 0, 0, true}, size));
      EXPECT_FALSE(good.back().packed.empty());
      ScanIndex index;
      FastDecoder indexed(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
      const std::vector<std::byte> file =
          testing::encode_as(testing::test_picture(150, 110), kind, 50);
      indexed.find_points(file, "x");
      good.push_back(testing::pack_sample(indexed, std::span<const std::byte>(file),
                                          {{3, 5, 140, 100}, 0, 0, false}, size));
      EXPECT_FALSE(good.back().packed.empty());
    }
    // More rows than the scratch memory holds, so that its last byte is used.
    Image tall;
    tall.resize(330, 900);
    for (size_t i = 0; i < tall.pixels.size(); ++i) tall.pixels[i] = uint8_t(i / 9900 * 2);
    const testing::SplitFile segments =
        testing::split_file(testing::encode_as(tall, testing::kPackedKinds[3], 20), 16);
    SegmentedJpeg jpeg;
    jpeg.open(segments.bytes, 330, 900, "x");
    good.push_back(testing::pack_sample(decoder, jpeg, {{0, 0, 330, 900}, 0, 0, true}, size));
    EXPECT_FALSE(good.back().packed.empty());
  }
  void unpack(const std::vector<std::byte>& slot) {
    const Unpacked found = testing::unpack_alone(slot, size);
    ASSERT_LE(found.failed[0], 1);
    failures += found.failed[0];
    const auto is_zero = [](uint8_t value) { return value == 0; };
    ASSERT_TRUE(found.failed[0] == 0 || std::ranges::all_of(found.pixels, is_zero));
  }
  const ImageSize size{76, 82};
  std::vector<PackedSample> good;
  RandomStream random{4, 0, 0, RandomUse::kSynthetic};
  int failures = 0;
};

TEST_F(HostileBytes, ChangedBytesNeverCrash) {
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    const PackedSample& sample = good[size_t(round) % good.size()];
    std::vector<std::byte> slot = sample.packed;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      const size_t near = random.below(3) ? sample.packed.size() : random.below(2) ? 120 : 9000;
      slot[random.below(std::min(near, sample.packed.size()))] = std::byte(random.next_u32());
    }
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
  }
  EXPECT_GT(failures, kRounds / 20);
  EXPECT_LT(failures, kRounds * 19 / 20);
}

TEST_F(HostileBytes, TruncatedDataFail) {
  for (const PackedSample& sample : good) {
    PackedJpeg header = header_of(sample);
    for (uint32_t bytes = 0; bytes < header.data_bytes; bytes += 97) {
      std::vector<std::byte> slot = sample.packed;
      PackedJpeg cut_short = header;
      cut_short.data_bytes = bytes;
      std::memcpy(slot.data(), &cut_short, sizeof cut_short);
      failures = 0;
      ASSERT_NO_FATAL_FAILURE(unpack(slot));
      EXPECT_EQ(failures, 1) << bytes;
      slot = sample.packed;
      std::fill(slot.begin() + header.data_at + bytes, slot.end(), std::byte{0});
      ASSERT_NO_FATAL_FAILURE(unpack(slot));
    }
  }
}

TEST_F(HostileBytes, RandomHeadersNeverCrash) {
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::byte> slot = good[size_t(round) % good.size()].packed;
    const size_t begin = random.below(100), end = begin + 1 + random.below(round % 2 ? 8 : 3000);
    for (size_t i = begin < 4 ? 4 : begin; i < std::min(end, slot.size()); ++i)
      slot[i] = std::byte(random.next_u32());
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
  }
  EXPECT_GT(failures, 2000);
}

// Numbers that are in range, but not those of the data.
TEST_F(HostileBytes, ForgedNumbersNeverCrash) {
  int decoded = 0;
  for (int round = 0; round < 6000; ++round) {
    std::vector<std::byte> slot = good[size_t(round) % good.size()].packed;
    PackedJpeg header;
    std::memcpy(&header, slot.data(), sizeof header);
    uint16_t* const numbers[] = {&header.rows,
                                 &header.parts_across,
                                 &header.part_mcus,
                                 &header.first_mcu,
                                 &header.end_mcu,
                                 &header.row_mcus,
                                 &header.across_axis[0].taps,
                                 &header.across_axis[1].low,
                                 &header.across_axis[0].high,
                                 &header.down_axis[0].taps,
                                 &header.down_axis[1].low,
                                 &header.down_axis[0].high};
    uint8_t* const bytes[] = {&header.components,  &header.across,      &header.down,
                              &header.checks_ends, &header.size[0],     &header.size[1],
                              &header.size[2],     &header.dc_table[1], &header.ac_table[0]};
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      if (random.below(2) == 0)
        *numbers[random.below(std::size(numbers))] =
            uint16_t(random.below(random.below(2) ? 40 : 65536));
      else
        *bytes[random.below(std::size(bytes))] = uint8_t(1 << random.below(4));
    }
    std::memcpy(slot.data(), &header, sizeof header);
    const int before = failures;
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
    decoded += failures == before;
  }
  EXPECT_GT(decoded, 50) << "this tests little";
  EXPECT_GT(failures, 3000);
}

TEST_F(HostileBytes, NumbersJustOutOfRangeFail) {
  for (const PackedSample& sample : good) {
    const PackedJpeg header = header_of(sample);
    UnpackPlan plan;
    ASSERT_TRUE(make_plan(header, uint32_t(sample.packed.size()), size, plan));
    const auto expect_failure = [&](const auto& forge, const char* name) {
      PackedJpeg forged = header;
      forge(forged);
      std::vector<std::byte> slot = sample.packed;
      std::memcpy(slot.data(), &forged, sizeof forged);
      failures = 0;
      unpack(slot);
      EXPECT_EQ(failures, 1) << name;
    };
    const int columns = (header.end_mcu - header.first_mcu) * plan.plane[0].across * header.size[0];
    const auto slot = uint32_t(sample.packed.size());
    expect_failure([&](PackedJpeg& h) { h.across_axis[0].high = uint16_t(columns + 1); },
                   "columns");
    expect_failure(
        [&](PackedJpeg& h) {
          h.down_axis[0].high = uint16_t(h.rows * plan.plane[0].band_rows + 1);
        },
        "rows");
    expect_failure([&](PackedJpeg& h) { ++h.across_axis[0].low; }, "the first column");
    expect_failure([&](PackedJpeg& h) { --h.down_axis[0].high; }, "the last row");
    expect_failure([&](PackedJpeg& h) { h.end_mcu = uint16_t(h.row_mcus + 1); }, "MCUs");
    expect_failure([&](PackedJpeg& h) { h.row_mcus = uint16_t(h.parts_across * h.part_mcus + 1); },
                   "MCUs of a row");
    expect_failure([&](PackedJpeg& h) { h.data_bytes = slot - h.data_at - kPackedSlack + 1; },
                   "data");
    expect_failure([&](PackedJpeg& h) { h.parts_at = slot / 4 * 4 - 16; }, "parts");
    expect_failure([&](PackedJpeg& h) { h.down_axis[0].at = slot - 100; }, "a filter");
    expect_failure([&](PackedJpeg& h) { h.ac_table[0] = 2; }, "a table");
    expect_failure([&](PackedJpeg& h) { h.size[0] = 3; }, "a size");
  }
}

TEST_F(HostileBytes, ForgedPartsNeverCrash) {
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::byte> slot = good[size_t(round) % good.size()].packed;
    const PackedJpeg header = header_of(slot.data());
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      std::byte* const at = slot.data() + header.parts_at +
                            sizeof(PackedPart) * random.below(header.rows * header.parts_across);
      PackedPart part;
      std::memcpy(&part, at, sizeof part);
      uint8_t* const bits[] = {&part.skipped, &part.left};
      int16_t* const predictors[] = {&part.dc[0], &part.dc[1], &part.end_dc[0], &part.end_dc[2]};
      switch (random.below(4)) {
        case 0:
          part.begin = uint32_t(random.below(random.below(2) ? 4000 : 1ull << 32));
          break;
        case 1:
          part.bytes = uint16_t(random.below(random.below(2) ? 60 : 65536));
          break;
        case 2:
          *bits[random.below(2)] = uint8_t(random.below(random.below(2) ? 9 : 256));
          break;
        default:
          *predictors[random.below(4)] = int16_t(random.next_u32());
      }
      std::memcpy(at, &part, sizeof part);
    }
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
  }
  EXPECT_GT(failures, 1000);
  EXPECT_LT(failures, 3900);
}

// Rows of samples must not be needed again once later ones have taken their place.
TEST_F(HostileBytes, OutputRowsThatGoBackFail) {
  for (const PackedSample& sample : good) {
    std::vector<std::byte> slot = sample.packed;
    const PackedAxis down = header_of(sample).down_axis[0];
    std::byte* const last = slot.data() + down.at + sizeof(uint16_t) * size_t(size.height - 1);
    std::memcpy(last, slot.data() + down.at, sizeof(uint16_t));
    failures = 0;
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
    EXPECT_EQ(failures, 1);
  }
}

TEST_F(HostileBytes, OtherCodesThanTheDatasFailOrDecode) {
  for (int round = 0; round < 1500; ++round) {
    std::vector<std::byte> slot = good[size_t(round) % good.size()].packed;
    const size_t codes = offsetof(PackedJpeg, codes) + sizeof(PackedCodes) * random.below(4);
    for (uint64_t n = 1 + random.below(6); n > 0; --n)
      slot[codes + random.below(random.below(2) ? 16 : sizeof(PackedCodes))] =
          std::byte(random.below(random.below(2) ? 4 : 256));
    ASSERT_NO_FATAL_FAILURE(unpack(slot));
  }
  EXPECT_GT(failures, 300);
}

}  // namespace
}  // namespace saturate
