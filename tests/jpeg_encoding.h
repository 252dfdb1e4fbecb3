// JPEG files of kinds that encode_jpeg() does not write.
#pragma once

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image/libjpeg.h"
#include "saturate/data/image.h"

namespace saturate::testing {

struct JpegKind {
  const char* name;
  J_COLOR_SPACE space = JCS_YCbCr;  // JCS_UNKNOWN: two components
  int across = 1, down = 1;         // sampling factors of the first component
  bool progressive = false;
  int restart_rows = 0;
  bool arithmetic = false;
  bool own_tables = false;  // optimised Huffman tables
  unsigned restart_mcus = 0;
  bool own_scans = false;      // one for each component
  bool wide_quants = false;    // of 16 bits, if the quality is low
  int chroma_across = 1;       // sampling factor of the other components
  bool last_as_first = false;  // the last component has the factors of the first
};

// The kinds that nearly all files are of, and `others`.
inline std::vector<JpegKind> usual_kinds_and(std::initializer_list<JpegKind> others) {
  std::vector<JpegKind> kinds = {
      {"444"},
      {"422", JCS_YCbCr, 2, 1},
      {"420", JCS_YCbCr, 2, 2},
      {"grey", JCS_GRAYSCALE},
      {"progressive_444", JCS_YCbCr, 1, 1, true},
      {"progressive_420", JCS_YCbCr, 2, 2, true},
  };
  kinds.insert(kinds.end(), others);
  return kinds;
}

inline bool has_inks(const JpegKind& kind) {
  return kind.space == JCS_CMYK || kind.space == JCS_YCCK;
}

// Four inks of each pixel, inverted, of which the last one varies with the others.
inline std::vector<uint8_t> inks_of(const uint8_t* rgb, int width) {
  std::vector<uint8_t> inks;
  for (int x = 0; x < width; ++x, rgb += 3)
    inks.insert(inks.end(), {rgb[0], rgb[1], rgb[2], uint8_t(255 - rgb[0] / 2)});
  return inks;
}

// libjpeg's errors end the process: these images are valid.
inline std::vector<std::byte> encode_as(const Image& image, const JpegKind& kind,
                                        int quality = 90) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  const bool inked = has_inks(kind);
  info.input_components = kind.space == JCS_UNKNOWN ? 2 : inked ? 4 : 3;
  info.in_color_space = kind.space == JCS_UNKNOWN ? JCS_UNKNOWN : inked ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, kind.space);
  jpeg_set_quality(&info, quality, kind.wide_quants ? FALSE : TRUE);
  std::vector<jpeg_scan_info> scans;
  for (int c = 0; c < info.num_components; ++c) {
    const bool first = c == 0 || (kind.last_as_first && c == info.num_components - 1);
    info.comp_info[c].h_samp_factor = first ? kind.across : kind.chroma_across;
    info.comp_info[c].v_samp_factor = first ? kind.down : 1;
    scans.push_back({1, {c}, 0, DCTSIZE2 - 1, 0, 0});
  }
  if (kind.progressive) jpeg_simple_progression(&info);
  if (kind.own_scans) {
    info.scan_info = scans.data();
    info.num_scans = info.num_components;
  }
  info.restart_interval = kind.restart_mcus;
  info.restart_in_rows = kind.restart_rows;  // if not 0, determines the interval
  info.arith_code = kind.arithmetic;
  info.optimize_coding = kind.own_tables;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<uint8_t*>(image.row(static_cast<int>(info.next_scanline)));
    std::vector<uint8_t> inks;
    if (inked) inks = inks_of(row, image.width);
    if (inked) row = inks.data();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const auto* data = reinterpret_cast<const std::byte*>(buffer);
  std::vector<std::byte> bytes(data, data + size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

// A JPEG file without its segments of that marker before the scan: 0xc4 Huffman tables, 0xdb
// quantisation tables.
inline std::vector<std::byte> without_segments(const std::vector<std::byte>& file, int marker) {
  const auto at = [&file](size_t i) { return std::to_integer<int>(file[i]); };
  std::vector<std::byte> out(file.begin(), file.begin() + 2);
  for (size_t place = 2;;) {
    const size_t end = place + 2 + size_t(at(place + 2) << 8 | at(place + 3));
    const bool scan = at(place + 1) == 0xda;
    if (at(place + 1) != marker)
      out.insert(out.end(), file.begin() + ptrdiff_t(place),
                 scan ? file.end() : file.begin() + ptrdiff_t(end));
    if (scan) return out;
    place = end;
  }
}

inline std::vector<std::byte> bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A marker with its length.
inline std::vector<std::byte> marker(int code, const std::string& body) {
  const size_t length = body.size() + 2;
  return bytes_of_text(std::string{char(0xff), char(code), char(length >> 8), char(length)} + body);
}

inline std::vector<std::byte> with_marker(std::vector<std::byte> file, int code,
                                          const std::string& body) {
  const auto added = marker(code, body);
  file.insert(file.begin() + 2, added.begin(), added.end());
  return file;
}

// Tables that are not those of encode_as(), for the same numbers: markers with their bodies.
inline std::vector<std::pair<int, std::string>> other_tables() {
  const std::string quants = std::string(1, '\0') + std::string(DCTSIZE2, 'c');
  std::string codes(1 + 16 + 1, '\0');  // one code of two bits, for the value 0
  codes[2] = 1;
  std::string codes_of_ac = codes;
  codes_of_ac[0] = 0x10;
  return {{0xdb, quants}, {0xc4, codes}, {0xc4, codes_of_ac}};
}

// The body of an APP1 marker with an EXIF orientation.
inline std::string exif(int orientation) {
  std::string text("Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0_\0\0\0\0\0\0\0", 32);
  text[24] = char(orientation);
  return text;
}

// Colours that change smoothly, with edges and fine lines across them.
inline Image test_picture(int width, int height) {
  Image image;
  image.resize(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      uint8_t* pixel = image.row(y) + ptrdiff_t{x} * 3;
      const bool disc = std::hypot(x - width * 0.4, y - height * 0.6) < width * 0.2;
      const double wave = 30 * std::sin(x * 0.7 + y * 0.2) + 20 * std::cos(y * 1.1);
      pixel[0] = uint8_t(110 + wave + (disc ? 60 : 0));
      pixel[1] = uint8_t(70 + 100.0 * x / width + wave / 2);
      pixel[2] = uint8_t(160 - 80.0 * y / height + (disc ? -40 : 20));
    }
  }
  return image;
}

}  // namespace saturate::testing
