#include "image/scan_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "image/codec.h"
#include "image/jpeg_markers.h"
#include "image/libjpeg.h"

namespace saturate {
namespace {

constexpr int kQuants = 4;

// The place, row by row, of each coefficient in the order of the file.
constexpr auto kPlaces = [] {
  std::array<uint8_t, DCTSIZE2> places{};
  for (int k = 0; k < DCTSIZE2; ++k) places[size_t(k)] = zigzag_place(k);
  return places;
}();

// Collects what the markers before a scan say, in addition to the frame.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const JpegFrame& frame, ScanHeader& header)
      : file_(file), header_(header) {
    header_ = {};
    static_cast<JpegFrame&>(header_) = frame;
  }

  bool read() {
    if (std::max(header_.width, header_.height) > JPEG_MAX_DIMENSION ||
        !is_packed_size(header_.width, header_.height))
      return false;
    walk_markers(file_, [this](int marker, size_t place, size_t end) {
      plain_ = plain_ && read_marker(marker, marker_body(file_, place, end));
    });
    if (!plain_ || !has_tables() || !is_ycc()) return false;
    const auto scan = file_.subspan(header_.scan_at);
    header_.scan = {reinterpret_cast<const uint8_t*>(scan.data()), scan.size()};
    return orientation_.found() <= 1;
  }

 private:
  using Body = std::span<const std::byte>;

  bool read_marker(int marker, Body body) {
    switch (marker) {
      case kFrame0:
      case kFrame1:
        return read_frame(body);
      case kHuffmanTables:
        return read_codes(body);
      case kQuantTables:
        return read_quants(body);
      case kRestartInterval:
        return true;
      case kScan:
        return read_scan(body);
      case kApp1:
        orientation_.see({reinterpret_cast<const char*>(body.data()), body.size()});
        return true;
      default:
        if (marker == kApp0 && body.size() >= 14 && starts_with(body, {"JFIF\0", 5}))
          has_jfif_ = true;
        if (marker == kApp14 && body.size() >= 12 && starts_with(body, "Adobe"))
          adobe_transform_ = byte_at(body, 11);
        // libjpeg fails at the reserved markers between these.
        return (marker >= kApp0 && marker < kApp0 + 16) || marker == kComment;
    }
  }

  static bool starts_with(Body body, std::string_view text) {
    return std::memcmp(body.data(), text.data(), text.size()) == 0;
  }

  bool read_frame(Body body) {
    for (int c = 0; c < header_.components; ++c) {
      const size_t at = 6 + 3 * size_t(c);
      id_[c] = byte_at(body, at);
      quant_of_[c] = byte_at(body, at + 2);
      if (quant_of_[c] >= kQuants || std::find(id_, id_ + c, id_[c]) != id_ + c) return false;
    }
    return true;
  }

  bool read_codes(Body body) {
    while (body.size() >= 17) {
      const int index = byte_at(body, 0), kind = index >> 4, number = index & 15;
      int count = 0;
      for (size_t i = 1; i <= 16; ++i) count += byte_at(body, i);
      if (kind > 1 || number > 1 || count > 256 || size_t(count) > body.size() - 17) return false;
      PackedCodes& codes = header_.codes[kind * 2 + number];
      codes = {};
      std::memcpy(codes.bits, body.data() + 1, 16);
      std::memcpy(codes.huffval, body.data() + 17, size_t(count));
      has_codes_[kind * 2 + number] = true;
      body = body.subspan(17 + size_t(count));
    }
    return body.empty();
  }

  bool read_quants(Body body) {
    while (!body.empty()) {
      const int number = byte_at(body, 0) & 15, wide = byte_at(body, 0) >> 4;
      const size_t bytes = 1 + size_t{DCTSIZE2} * size_t(wide + 1);
      if (number >= kQuants || wide > 1 || body.size() < bytes) return false;
      for (size_t k = 0; k < DCTSIZE2; ++k)
        quant_[number][kPlaces[k]] =
            uint16_t(wide == 1 ? big16(body, 1 + 2 * k) : byte_at(body, 1 + k));
      has_quant_[number] = true;
      body = body.subspan(bytes);
    }
    return true;
  }

  bool read_scan(Body body) {
    const int count = header_.components;
    if (body.size() != 4 + 2 * size_t(count)) return false;
    for (int c = 0; c < count; ++c) {
      const size_t at = 1 + 2 * size_t(c);
      const int tables = byte_at(body, at + 1), dc = tables >> 4, ac = tables & 15;
      if (byte_at(body, at) != id_[c] || dc > 1 || ac > 1) return false;
      header_.dc_table[c] = uint8_t(dc);
      header_.ac_table[c] = uint8_t(ac);
    }
    const size_t at = 1 + 2 * size_t(count);  // all coefficients, in one scan
    return byte_at(body, at) == 0 && byte_at(body, at + 1) == 63 && byte_at(body, at + 2) == 0;
  }

  bool has_tables() {
    for (int c = 0; c < header_.components; ++c) {
      if (!has_quant_[quant_of_[c]] || !has_codes_[header_.dc_table[c]] ||
          !has_codes_[2 + header_.ac_table[c]])
        return false;
      std::copy_n(quant_[quant_of_[c]], DCTSIZE2, header_.quant[c]);
    }
    return true;
  }

  // As libjpeg decides it (jdapimin.c, default_decompress_parms).
  bool is_ycc() const {
    if (header_.components == 1 || has_jfif_) return true;
    if (adobe_transform_ >= 0) return adobe_transform_ != 0;
    return !(id_[0] == 'R' && id_[1] == 'G' && id_[2] == 'B');
  }

  const Body file_;
  ScanHeader& header_;
  bool plain_ = true, has_jfif_ = false;
  int adobe_transform_ = -1;
  int id_[3] = {}, quant_of_[3] = {};
  bool has_quant_[kQuants] = {}, has_codes_[kPackedTables] = {};
  uint16_t quant_[kQuants][DCTSIZE2] = {};
  OrientationFinder orientation_;
};

// Samples along a side of a block that libjpeg reduces to, for one that is fewer times in an MCU
// than the most by these factors (jdmaster.c, jpeg_calc_output_dimensions).
int reduced_size(int fewer_across, int fewer_down, int scale) {
  int size = scale;
  while (size < DCTSIZE && fewer_across * scale % (size * 2) == 0 &&
         fewer_down * scale % (size * 2) == 0)
    size *= 2;
  return size;
}

}  // namespace

bool read_scan_header(std::span<const std::byte> file, const JpegFrame& frame, ScanHeader& header) {
  return HeaderReader(file, frame, header).read();
}

bool read_scan_header(JpegDecoder& decoder, ScanHeader& header) {
  header = {};
  jpeg_decompress_struct& info = decoder.info();
  if (!decoder.has_planes() || !BaselineScan::supports(info)) return false;
  const bool single = info.num_components == 1;
  header.width = int(info.image_width);
  header.height = int(info.image_height);
  header.components = info.num_components;
  header.across = single ? 1 : info.comp_info[0].h_samp_factor;
  header.down = single ? 1 : info.comp_info[0].v_samp_factor;
  header.restart = int(info.restart_interval);
  header.scan = {info.src->next_input_byte, info.src->bytes_in_buffer};
  const auto copy_codes = [&](int table, const JHUFF_TBL& codes) {
    std::copy_n(codes.bits + 1, 16, header.codes[table].bits);
    std::copy_n(codes.huffval, 256, header.codes[table].huffval);
  };
  for (int c = 0; c < header.components; ++c) {
    const jpeg_component_info& component = info.comp_info[c];
    if (c > 0 && (component.h_samp_factor != 1 || component.v_samp_factor != 1)) return false;
    header.dc_table[c] = uint8_t(component.dc_tbl_no);
    header.ac_table[c] = uint8_t(component.ac_tbl_no);
    std::copy_n(info.quant_tbl_ptrs[component.quant_tbl_no]->quantval, DCTSIZE2, header.quant[c]);
    copy_codes(component.dc_tbl_no, *info.dc_huff_tbl_ptrs[component.dc_tbl_no]);
    copy_codes(2 + component.ac_tbl_no, *info.ac_huff_tbl_ptrs[component.ac_tbl_no]);
  }
  return true;
}

JpegPlanes plan_planes(const ScanHeader& header, int width, const Box& crop, int scale) {
  PlaneShape shape{header.components, width, header.height, header.across, header.down, {}};
  for (int c = 0; c < header.components; ++c) {
    const bool luma = c == 0;
    shape.plane[c] = {luma ? header.across : 1, luma ? header.down : 1,
                      reduced_size(luma ? 1 : header.across, luma ? 1 : header.down, scale)};
  }
  return plan_planes(shape, crop, scale);
}

}  // namespace saturate
