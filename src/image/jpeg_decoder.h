#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image/baseline_scan.h"
#include "image/codec.h"
#include "image/libjpeg.h"
#include "saturate/data/augment.h"

namespace saturate {

class SegmentedJpeg;

// The planes of an image as stored by libjpeg, Y alone or Y, Cb, Cr or R, G, B, each at its own
// resolution and possibly reduced, limited to the columns and rows that a crop needs. Those of four
// components are the R, G, B that exact mode makes of them.
struct JpegPlanes {
  struct Axis {
    int num = 1, den = 1;  // samples per pixel of the image: num / den
    int samples = 0;       // of the whole plane
    // A pixel is a part of a sample, and read() would upsample the plane: by a filter, which
    // doubles it, or by repeating samples.
    bool doubled = false, repeated = false;
    bool has_ratio_of(const Axis& other) const { return num * other.den == other.num * den; }
  };
  struct Plane {
    Axis across, down;
    int first_column = 0, columns = 0;  // decoded samples: [first_column, first_column + columns)
    int band_rows() const { return down.num; }  // rows of one band
  };
  int count = 0;  // 1 or 3
  Plane plane[3];
  int band_pixels = 0;               // height of a band in image pixels
  int first_band = 0, end_band = 0;  // bands that the crop needs
  BaselineScan::Columns columns;     // MCUs that it needs
};

// Everything that the planes of an image depend on.
struct PlaneShape {
  int components;
  int width, height;         // of the image, pixels
  int mcu_across, mcu_down;  // blocks of an MCU along its sides, at most
  struct Plane {
    int across, down;  // blocks in an MCU
    int size;          // samples along a block's side
  } plane[3];
};
// The planes below `crop`, at `scale` / 8 of their full size.
JpegPlanes plan_planes(const PlaneShape& shape, const Box& crop, int scale);

// Decodes one image after another, each with a new libjpeg decompressor: a reused one keeps
// quantisation and Huffman tables, which a file without its own would then use. Call open() then
// read(), or open(), begin_planes() and read_band() for each band, or open() and transcode() or
// transcode_like(), each any number of times, or open() alone; `bytes` must live until then. Not
// movable: libjpeg keeps pointers into it.
class JpegDecoder {
 public:
  enum class Markers { kNeeded, kAll };  // which markers to keep: all for transcode()
  explicit JpegDecoder(Markers markers = Markers::kNeeded);
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // `shown`: the image's own columns if the others are padding; 0: there is none.
  CodecHeader open(std::span<const std::byte> bytes, const std::string& where, int shown = 0);
  // Pixels as stored, before orientation. Returns the orientation.
  int read(const std::string& where, Image& out);

  // Whether the open image is of a kind whose planes can be read: 8-bit, Huffman-coded, grey, YCbCr
  // or RGB in any sampling that libjpeg supports, or CMYK or YCCK without subsampling. They are as
  // stored, before orientation. REQUIRES: open() was the last call.
  bool can_read_planes() const;
  // Whether it is also of a kind that is cut into segments: grey, or YCbCr with 4:4:4, 4:2:2, 4:4:0
  // or 4:2:0 sampling, and not small.
  bool has_planes() const;
  // Whether its planes are R, G, B.
  bool is_rgb() const { return info_.jpeg_color_space == JCS_RGB || has_inks(); }
  // A crop must be this many times as large as one of an image with has_planes() to be reduced as
  // much; 0: it must not be reduced. REQUIRES: can_read_planes().
  int coarseness() const;
  // Whether points of its scan are of use: it is baseline, has one scan of up to three components,
  // and is not small.
  bool has_points() const;
  // Finds all points of its scan, without transforming anything. False if there are none that are
  // of use, or `points` do not agree with the data. REQUIRES: can_read_planes(), has_points().
  bool find_points(const std::string& where, ScanPoints& points);
  // Prepares to read the planes below `crop`, at `scale` / 8 of their full size: those of
  // plan_planes(). `scale`: 1, 2, 4 or 8. `segments`: if the open file is segmented. `points`: as
  // of BaselineScan::start(). Empty if only read() can decode the image, or report what is wrong
  // with it.
  std::optional<JpegPlanes> begin_planes(const std::string& where, const Box& crop, int scale,
                                         const SegmentedJpeg* segments = nullptr,
                                         ScanPoints* points = nullptr);
  // Reads the next band: band_rows() rows of each plane to rows[plane][i], each holding `columns`
  // samples. The first call skips the bands before first_band. False as for begin_planes().
  bool read_band(const std::string& where, uint8_t* const* const rows[3]);
  // After the last band needed: fails if the data ends before the end of the image, as read()
  // would. The data in between is not decoded, so other damage there is not detected.
  void check_end(const std::string& where) const;

  // Width and height of an MCU, pixels.
  std::pair<int, int> mcu_size() const;
  // Writes the open image's coefficients as a baseline JPEG with a frame of that width, padded with
  // blocks of few bits, a restart marker after every `restart` MCUs (0: none) and optimised Huffman
  // tables. REQUIRES: has_planes(), Markers::kAll. Fails with kData if the image is broken, or
  // lacks bits that libjpeg estimates.
  void transcode(const std::string& where, int width, int restart, std::vector<std::byte>& out);
  // The same with the width, Huffman tables and restart interval of `like`, whose header is open;
  // padding is as libjpeg writes it. False if `like` is of another kind or size, or its tables are
  // not valid. If they have no code for a value the data are wrong: libjpeg does not check it.
  bool transcode_like(const std::string& where, const JpegDecoder& like,
                      std::vector<std::byte>& out);

  // libjpeg's state of the open image, after its header.
  jpeg_decompress_struct& info() { return info_; }

  // Frees an image's memory, also after a failure.
  void close();

 private:
  static void on_message(j_common_ptr info, int level);
  static void on_progress(j_common_ptr info);

  [[noreturn]] void report(const std::string& where);
  int find_orientation() const;
  PlaneShape plane_shape() const;
  bool has_inks() const { return info_.num_components == 4; }
  bool begin_scan(const std::string& where, const SegmentedJpeg* segments, ScanPoints* points);
  bool read_coefficients(const std::string& where);
  bool is_incomplete() const;
  void transform_row(int c, JDIMENSION row, uint8_t* const* out);
  // read_band() of all components.
  bool read_components(const std::string& where, uint8_t* const* const* rows);
  // Replaces the first three of a row of four components by R, G, B.
  void inks_to_rgb(uint8_t* const (&row)[4], size_t columns) const;
  void read_rgb(Image& out);
  void read_cmyk(Image& out);

  const Markers markers_;
  jpeg_decompress_struct info_{};
  JpegErrors errors_;
  jpeg_progress_mgr progress_{};
  std::vector<uint8_t> cmyk_row_;  // [width, 4]
  int width_ = 0;                  // of the image, without padding
  int orientation_ = 1;
  BaselineScan scan_;
  bool in_scan_ = false;                      // scan_ reads the planes
  jvirt_barray_ptr* coefficients_ = nullptr;  // the planes' otherwise
  BaselineScan::Columns columns_;             // MCUs below the crop
  std::vector<GroupRow> groups_;              // of a row of blocks
  std::vector<uint8_t> black_;                // of four components, a band of the last one
  std::vector<uint8_t*> black_rows_;
  int band_ = 0;  // the next one
  int bands_to_skip_ = 0;
};

}  // namespace saturate
