// The inverse DCT against libjpeg's, at each size that libjpeg reduces to, and the coefficients
// that BaselineScan stores for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "image/inverse_dct.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"
#include "tests/scan_testing.h"

namespace saturate {
namespace {

using testing::coefficients_by_libjpeg;
using testing::coefficients_by_scan;
using testing::encode_as;
using testing::JpegKind;
using testing::test_picture;

// Rows of one component, as libjpeg transforms them.
std::vector<std::vector<uint8_t>> plane_by_libjpeg(std::span<const std::byte> file, int size) {
  testing::TestDecompressor from(file);
  EXPECT_TRUE(from.ok);
  from.info.scale_num = unsigned(size);
  from.info.scale_denom = 8;
  from.info.raw_data_out = TRUE;
  from.info.dct_method = JDCT_ISLOW;
  std::vector<std::vector<uint8_t>> rows;
  EXPECT_TRUE(from.errors.guarded([&] {
    jpeg_start_decompress(&from.info);
    const size_t width = from.info.comp_info[0].width_in_blocks * size_t(size);
    for (int band = 0; band < from.mcu_rows(); ++band) {
      uint8_t* pointers[8];
      for (int y = 0; y < size; ++y) rows.emplace_back(width + 64);
      for (int y = 0; y < size; ++y)
        pointers[y] = rows[rows.size() - size_t(size) + size_t(y)].data();
      JSAMPARRAY planes[1] = {pointers};
      jpeg_read_raw_data(&from.info, planes, JDIMENSION(size));
    }
  }));
  for (auto& row : rows) row.resize(row.size() - 64);
  return rows;
}

std::vector<std::vector<uint8_t>> plane_by(InverseDct transform, std::span<const std::byte> file,
                                           int size) {
  const auto coefficients = coefficients_by_libjpeg(file);
  testing::TestDecompressor from(file);
  const uint16_t* quant = from.info.quant_tbl_ptrs[0]->quantval;
  std::vector<std::vector<uint8_t>> rows;
  for (const auto& blocks : (*coefficients)[0]) {
    std::vector<GroupRow> groups((blocks.size() + 3) / 4 * 8);
    for (size_t b = 0; b < blocks.size(); ++b)
      for (size_t v = 0; v < 8; ++v)
        std::memcpy(groups[b / 4 * 8 + v].value + b % 4 * 8, blocks[b].data() + v * 8, 16);
    std::vector<uint8_t*> pointers;
    const size_t first = rows.size();
    for (int y = 0; y < size; ++y) rows.emplace_back(blocks.size() * size_t(size) + 1, uint8_t{77});
    for (int y = 0; y < size; ++y) pointers.push_back(rows[first + size_t(y)].data());
    transform(groups.data()->value, quant, int(blocks.size()), pointers.data(), 0);
    for (int y = 0; y < size; ++y) {
      EXPECT_EQ(rows[first + size_t(y)].back(), 77) << "it writes beyond the blocks";
      rows[first + size_t(y)].pop_back();
    }
  }
  return rows;
}

TEST(InverseDct, EqualsLibjpegsAtEverySizeAndInstructionSet) {
  Image noise = test_picture(211, 163);
  RandomStream random(5, 0, 0, RandomUse::kSynthetic);
  for (uint8_t& value : noise.pixels) value = uint8_t(random.below(256));
  for (const Image& picture : {test_picture(211, 163), test_picture(29, 16), noise})
    for (const int quality : {1, 2, 30, 75, 92, 100}) {
      // Then factors have up to 12 bits.
      const auto file = encode_as(
          picture, {.name = "grey", .space = JCS_GRAYSCALE, .wide_quants = quality == 2}, quality);
      for (const int size : {1, 2, 4, 8}) {
        const auto expected = plane_by_libjpeg(file, size);
        for (const auto& [name, transform] : all_inverse_dcts(size))
          EXPECT_EQ(plane_by(transform, file, size), expected)
              << name << " quality " << quality << " size " << size;
      }
    }
}

// Whether a coefficient, row by row, changes any sample of its block.
bool is_used(InverseDct transform, size_t place) {
  GroupRow rows[DCTSIZE] = {};
  rows[place / DCTSIZE].value[place % DCTSIZE] = 50;
  alignas(64) uint16_t quant[DCTSIZE2];
  std::fill_n(quant, DCTSIZE2, uint16_t{16});
  std::vector<uint8_t> samples(DCTSIZE2, uint8_t{128});
  uint8_t* out[DCTSIZE];
  for (size_t y = 0; y < DCTSIZE; ++y) out[y] = samples.data() + y * DCTSIZE;
  transform(rows->value, quant, 1, out, 0);
  return std::ranges::any_of(samples, [](uint8_t sample) { return sample != 128; });
}

// Only a block that is reduced to one sample ends early for BaselineScan: the last coefficient is
// used at all other sizes.
TEST(InverseDct, TheCoefficientsThatEachSizeUses) {
  for (const auto& [size, expected] : {std::pair{1, 1}, {2, 25}, {4, 49}, {8, 64}})
    for (const auto& [name, transform] : all_inverse_dcts(size)) {
      int used = 0;
      for (size_t place = 0; place < DCTSIZE2; ++place) used += is_used(transform, place) ? 1 : 0;
      EXPECT_EQ(used, expected) << name << " size " << size;
      EXPECT_EQ(is_used(transform, DCTSIZE2 - 1), size > 1) << name << " size " << size;
    }
}

// `whole` without what is not stored at that scale.
testing::Coefficients stored_at(testing::Coefficients whole, std::span<const std::byte> file,
                                unsigned scale) {
  const testing::TestDecompressor reduced(file, scale);
  for (size_t c = 0; c < whole.size(); ++c) {
    if (scaled_block_size(reduced.info.comp_info[c]) > 1) continue;
    for (auto& row : whole[c])
      for (testing::Block& block : row) std::fill(block.begin() + 1, block.end(), int16_t{0});
  }
  return whole;
}

const JpegKind kStoredKinds[] = {
    {"444"},
    {"422", JCS_YCbCr, 2, 1},
    {"420", JCS_YCbCr, 2, 2},
    {"411", JCS_YCbCr, 4, 1},
    {"grey", JCS_GRAYSCALE},
    {"restarts_420", JCS_YCbCr, 2, 2, false, 1},
    {.name = "restarts_444", .restart_mcus = 11},
};

// Alone and, once points are known or between restarts, in two parts.
TEST(InverseDct, BaselineScanStoresTheCoefficientsThatEachSizeUses) {
  for (const JpegKind& kind : kStoredKinds)
    for (const int quality : {30, 95}) {
      const auto file = encode_as(test_picture(700, 61), kind, quality);
      const auto whole = coefficients_by_libjpeg(file);
      ASSERT_TRUE(whole) << kind.name;
      for (const unsigned scale : {1u, 2u, 4u, 8u}) {
        const auto expected = stored_at(*whole, file, scale);
        EXPECT_EQ(expected != *whole, scale == 1) << kind.name;
        ScanPoints points;
        for (int pass = 0; pass < 2; ++pass)
          EXPECT_EQ(coefficients_by_scan(file, {.points = &points, .scale = scale}), expected)
              << kind.name << " " << quality << " scale " << scale << " pass " << pass;
      }
    }
}

}  // namespace
}  // namespace saturate
