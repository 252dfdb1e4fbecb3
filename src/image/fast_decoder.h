// data.decode = "fast": JPEG bytes to the pixels of a sample, row by row.
//
// Only the columns and rows below the crop are transformed, at a reduced size if the crop is much
// larger than the output; each component is resized at its own resolution; colour conversion, flip
// and normalisation run once, at the output's size. Only the last decoded rows and a few output
// rows are in memory. All this is in the stored orientation; each output row becomes a row or a
// column of the upright image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "image/fast_axis.h"
#include "image/fast_kernels.h"
#include "image/jpeg_decoder.h"
#include "image/jpeg_packer.h"
#include "image/scan_index.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/augment.h"
#include "saturate/data/image.h"

namespace saturate {

// Keeps codec state and buffers between images. Not for concurrent use: one per thread.
class FastDecoder {
 public:
  // `index`, if there is one, is used and extended; it must outlive this.
  explicit FastDecoder(int64_t max_pixels = Decoder::kDefaultMaxPixels,
                       const FastKernels& kernels = fast_kernels(), ScanIndex* index = nullptr);

  // Reads the header; `bytes` must live until read(). Empty if Decoder has to decode it: not a
  // JPEG, or an unusual kind. Errors as of Decoder::decode().
  std::optional<ImageInfo> open(std::span<const std::byte> bytes, const std::string& where);
  // The same for a segmented JPEG, which must live as long; read() then decodes only the segments
  // it needs, in place.
  std::optional<ImageInfo> open(const SegmentedJpeg& segments, const std::string& where);

  // The same for plan_pack() alone, not for read(), and without libjpeg, which takes most of the
  // time of open(). Empty if the header is not a plain one: only open() knows then. No errors.
  std::optional<ImageInfo> open_to_pack(const SegmentedJpeg& segments);

  // Finds the points of all of a file for the index, if it is of a kind that has some. Errors as of
  // open(). REQUIRES: an index.
  enum class Points { kNone, kKnown, kFound };
  Points find_points(std::span<const std::byte> bytes, const std::string& where);

  // Plans the open image as a packed JPEG (image/packed_jpeg.h), and returns its bytes: unpacking
  // it makes the uint8 pixels that read() makes. 0 if only read() can decode it: its parts are not
  // known, or decoding would need more memory than there is, or it is padded. REQUIRES: open() or
  // open_to_pack() returned a value; read() was not called since. The image stays open.
  size_t plan_pack(const SampleTransform& transform, const ImageSize& size);
  // Writes what was planned to `out`, aligned to 4. REQUIRES: plan_pack() returned its bytes, and
  // read() was not called since.
  void pack(std::byte* out);

  // Decodes the open image: crops to `transform.crop`, resizes it, flips. Writes
  // transform.filled(size) of `out` [size.height, size.width, 3], and not the padding around it.
  // False, and `out` unspecified, if Decoder has to decode it. REQUIRES: open() returned a value;
  // no shift.
  bool read(const std::string& where, const SampleTransform& transform, const ImageSize& size,
            std::byte* out);

 private:
  // The last rows of one plane: row r is in slot r % slots.
  struct Ring {
    std::vector<uint8_t> samples;
    size_t pitch = 0, slots = 0;  // slots: a power of two
    uint8_t* row(int r) { return samples.data() + (size_t(r) & (slots - 1)) * pitch; }
  };
  // Conversion of one plane to one channel of the output.
  struct Resize {
    FastAxis across, down;
    FastGather gather;
  };
  // A transform of the image as stored.
  struct Cut {
    SampleTransform transform;
    ImageSize size;  // of the resized crop
    bool reversed;   // the last row comes first
  };
  // Where that goes: its first pixel, and the bytes to the next pixel and to the next row.
  struct Place {
    uint8_t* first;
    ptrdiff_t right, down;
  };

  std::optional<ImageInfo> open(std::span<const std::byte> bytes, const SegmentedJpeg* segments,
                                const std::string& where);
  // The open file's; computed once.
  const ScanKey& key();
  // `size` from here on: of the resized crop.
  Cut as_stored(const SampleTransform& transform, const ImageSize& size) const;
  bool read(const std::string& where, const Cut& cut, const Place& to, ScanPoints* points);
  bool plan(const JpegPlanes& planes, const SampleTransform& transform, const ImageSize& size);
  bool plan_axes(const JpegPlanes& planes, const SampleTransform& transform, const ImageSize& size);
  bool plan_plane(const JpegPlanes::Plane& plane, const SampleTransform& transform,
                  const ImageSize& size, Resize& resize);
  void plan_rings(const JpegPlanes& planes, int height);
  void put_columns(int begin, int end, int width, const Place& to);
  bool stream(const std::string& where, const JpegPlanes& planes, const ImageSize& size,
              const Place& to);
  bool read_band(const std::string& where, const JpegPlanes& planes, int band);
  void resize_row(const JpegPlanes& planes, int c, int y);
  Resize& resize_of(int c) { return resize_[resize_at_[c]]; }

  const FastKernels kernels_;
  const int64_t max_pixels_;
  JpegDecoder jpeg_;
  std::span<const std::byte> bytes_;         // the open image
  const SegmentedJpeg* segments_ = nullptr;  // the same, if segmented
  ScanIndex* const index_;
  std::optional<ScanKey> key_;
  ScanPoints points_;
  int width_ = 0, height_ = 0;  // of the open image as stored, without padding
  Orientation orientation_;     // of the open image
  bool has_header_ = false;     // header_ is of the open image, whose bytes libjpeg has not seen
  ScanHeader header_;
  JpegPacker packer_;
  FastAxisMaker axis_maker_;
  Resize resize_[3];
  int resize_at_[3] = {};  // of each plane: the first one of its resolution
  Ring ring_[3];
  std::vector<int> bands_for_;  // [height], bands to decode before each output row
  std::vector<const uint8_t*> taps_;
  std::vector<uint8_t> blended_, channel_[3], rgb_;
};

}  // namespace saturate
