// Coefficients of JPEG files, as BaselineScan and libjpeg read them.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "image/baseline_scan.h"
#include "image/segmented_jpeg.h"
// After jpeglib.h.
#include <jerror.h>

namespace saturate::testing {

// A libjpeg decompressor of one file, at `scale` / 8 of its size; the errors of a file are its
// failures.
struct TestDecompressor {
  jpeg_decompress_struct info{};
  JpegErrors errors;
  bool ok = false;

  explicit TestDecompressor(std::span<const std::byte> file, unsigned scale = DCTSIZE) {
    info.err = &errors.base;
    errors.base.emit_message = [](j_common_ptr any, int level) {
      const int code = any->err->msg_code;
      const bool harmless = code == JWRN_EXTRANEOUS_DATA || code == JWRN_NOT_SEQUENTIAL;
      if (level < 0 && !harmless) JpegErrors::leave(any);
    };
    ok = errors.guarded([&] {
      jpeg_create_decompress(&info);
      jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
      jpeg_read_header(&info, TRUE);
      info.scale_num = scale;
      info.scale_denom = DCTSIZE;
      jpeg_calc_output_dimensions(&info);
    });
  }
  ~TestDecompressor() { jpeg_destroy_decompress(&info); }
  TestDecompressor(const TestDecompressor&) = delete;
  TestDecompressor& operator=(const TestDecompressor&) = delete;

  int mcu_rows() const { return count(info.image_height, info.max_v_samp_factor); }
  int mcus() const { return count(info.image_width, info.max_h_samp_factor); }
  int across(int c) const { return single() ? 1 : info.comp_info[c].h_samp_factor; }
  int down(int c) const { return single() ? 1 : info.comp_info[c].v_samp_factor; }

 private:
  bool single() const { return info.num_components == 1; }
  int count(JDIMENSION pixels, int factor) const {
    const int size = DCTSIZE * (single() ? 1 : factor);
    return (int(pixels) + size - 1) / size;
  }
};

using Block = std::array<int16_t, DCTSIZE2>;
// [component][row][column]: those of the image, without padding.
using Coefficients = std::vector<std::vector<std::vector<Block>>>;

// Empty if libjpeg fails or warns.
inline std::optional<Coefficients> coefficients_by_libjpeg(std::span<const std::byte> file) {
  TestDecompressor from(file);
  jvirt_barray_ptr* arrays = nullptr;
  if (!from.ok || !from.errors.guarded([&] { arrays = jpeg_read_coefficients(&from.info); }))
    return std::nullopt;
  Coefficients all;
  for (int c = 0; c < from.info.num_components; ++c) {
    const jpeg_component_info& component = from.info.comp_info[c];
    auto& rows = all.emplace_back();
    for (JDIMENSION y = 0; y < component.height_in_blocks; ++y) {
      JBLOCKARRAY blocks = (*from.info.mem->access_virt_barray)(
          reinterpret_cast<j_common_ptr>(&from.info), arrays[c], y, 1, FALSE);
      auto& row = rows.emplace_back(component.width_in_blocks);
      std::memcpy(row.data(), blocks[0], row.size() * sizeof(Block));
    }
  }
  return all;
}

constexpr size_t kCoefficientRow = DCTSIZE * sizeof(int16_t);  // bytes

// A "transform" that keeps the coefficients: a row of samples holds 8 / kSize rows of each block.
template <size_t kSize>
void keep_coefficients(const int16_t* groups, const uint16_t*, int count, uint8_t* const* rows,
                       size_t x) {
  constexpr size_t kRows = DCTSIZE / kSize;
  for (size_t b = 0; b < size_t(count); ++b)
    for (size_t v = 0; v < DCTSIZE; ++v)
      std::memcpy(rows[v / kRows] + ((x / kSize + b) * kRows + v % kRows) * kCoefficientRow,
                  groups + (b / 4 * 8 + v) * kGroupRow + b % 4 * 8, kCoefficientRow);
}

inline InverseDct keep_coefficients_of(int size) {
  if (size == 8) return keep_coefficients<8>;
  return size == 4 ? keep_coefficients<4> : size == 2 ? keep_coefficients<2> : keep_coefficients<1>;
}

// Which MCUs to read, in which way.
struct ReadMcus {
  BaselineScan::Columns columns = {};  // none: all
  int first_row = 0, end_row = -1;     // rows of MCUs; -1: all
  const SegmentedJpeg* segments = nullptr;
  ScanPoints* points = nullptr;
  unsigned scale = DCTSIZE;
};

// Blocks that are not read are 0. Empty if BaselineScan leaves the file to libjpeg.
inline std::optional<Coefficients> coefficients_by_scan(std::span<const std::byte> file,
                                                        ReadMcus read = {}) {
  TestDecompressor from(file, read.scale);
  if (!from.ok) return std::nullopt;
  if (read.columns.end == 0) read.columns.end = from.mcus();
  if (read.end_row < 0) read.end_row = from.mcu_rows();
  BaselineScan scan(keep_coefficients_of);
  if (!scan.start(from.info, read.columns, read.segments, read.points)) return std::nullopt;
  Coefficients all;
  std::vector<std::vector<uint8_t>> buffers[4];
  std::vector<uint8_t*> rows[4];
  size_t size[4] = {};  // of a block's samples
  const int components = from.info.num_components;
  const int columns = read.columns.end - read.columns.first;
  for (int c = 0; c < components; ++c) {
    const jpeg_component_info& component = from.info.comp_info[c];
    all.emplace_back(component.height_in_blocks, std::vector<Block>(component.width_in_blocks));
    size[c] = size_t(scaled_block_size(component));
    buffers[c].assign(size_t(from.down(c)) * size[c],
                      std::vector<uint8_t>(size_t(columns * from.across(c)) * DCTSIZE / size[c] *
                                           kCoefficientRow));
    for (auto& buffer : buffers[c]) rows[c].push_back(buffer.data());
  }
  uint8_t* const* const pointers[4] = {rows[0].data(), rows[1].data(), rows[2].data(),
                                       rows[3].data()};
  for (int row = 0; row < read.end_row; ++row) {
    if (!scan.read_band(pointers, row < read.first_row)) return std::nullopt;
    if (row < read.first_row) continue;
    for (int c = 0; c < components; ++c) {
      const int first = read.columns.first * from.across(c);
      for (int y = 0; y < from.down(c); ++y) {
        const size_t to = size_t(row * from.down(c) + y);
        if (to >= all[size_t(c)].size()) continue;
        for (int x = 0; x < columns * from.across(c); ++x) {
          if (first + x >= int(all[size_t(c)][to].size())) continue;
          const size_t in_row = DCTSIZE / size[c];
          for (size_t v = 0; v < DCTSIZE; ++v)
            std::memcpy(all[size_t(c)][to][size_t(first + x)].data() + v * DCTSIZE,
                        rows[c][size_t(y) * size[c] + v / in_row] +
                            (size_t(x) * in_row + v % in_row) * kCoefficientRow,
                        kCoefficientRow);
        }
      }
    }
  }
  return all;
}

}  // namespace saturate::testing
