// SPDX-License-Identifier: BSD-3-Clause
// Augmentation: drawing a sample's parameters, and applying them to its pixels.
//
// The two are separate so that parameters can be drawn anywhere (they depend only on the seed,
// epoch and sample), dumped in tests, and applied on CPU or GPU by the same pixel functions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "saturate/data/data_options.h"
#include "saturate/data/image.h"
#include "saturate/data/pixel.h"
#include "saturate/data/random.h"

namespace saturate {

// A rectangle in pixels.
struct Box {
  int x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Box&) const = default;
};

// The transform of one sample, in this order: crop to `crop` (inside the image), resize to the
// output's size or to `fitted`, shift, flip.
struct SampleTransform {
  Box crop;
  // Pixels of the resized image by which the window moves right and down, in [-padding, padding]: a
  // crop of the padded image. The uncovered area is filled by pad_mode.
  int shift_x = 0, shift_y = 0;
  bool flip = false;  // left to right
  // kLetterbox: the part of the output that the crop fills, before the flip; the rest is padding.
  // Empty: all of it.
  Box fitted = {};

  // Where the resized crop is in the output, before the flip.
  Box filled(const ImageSize& size) const {
    return fitted.width > 0 ? fitted : Box{0, 0, size.width, size.height};
  }
};

// RandomResizedCrop's box, as in torchvision.transforms.RandomResizedCrop.make_params: ten tries
// with a uniform area share and a log-uniform ratio, then a centred fallback.
Box random_resized_crop(RandomStream& random, int width, int height, double scale_min,
                        double scale_max, double ratio_min, double ratio_max);

// Parameters for one training image of `width` x `height`. All randomness comes from `random`.
// kNone, kPad and kLetterbox use the whole image, kCenter the box of evaluation. REQUIRES: width
// and height > 0, and options.size is set.
SampleTransform draw_transform(const AugmentOptions& options, RandomStream& random, int width,
                               int height);

// The deterministic transform of evaluation. kCenter and kRandomResized: the centre crop that
// remains after resizing the image, its ratio kept, to cover size * eval_resize, with edges rounded
// to whole pixels of the image. kNone, kPad and kLetterbox: the whole image, as in training.
SampleTransform eval_transform(const AugmentOptions& options, int width, int height);

// Antialiased bilinear resize of `box` to out_width x out_height: a triangle filter widened by the
// reduction factor, within one level of Pillow's BILINEAR and torchvision's antialias=True. Pixels
// outside `box` have no influence.
//
// Holds scratch rows and filter tables between calls. Not for concurrent use: one per thread.
class Resizer {
 public:
  Resizer();
  ~Resizer();
  Resizer(Resizer&&) noexcept;
  Resizer& operator=(Resizer&&) noexcept;

  // `out` holds out_height * out_width * 3 bytes, RGB interleaved. REQUIRES: box inside `in` and
  // not empty.
  void resize(const Image& in, const Box& box, int out_width, int out_height, uint8_t* out);

  // A scratch image for the caller's use between resizes, to avoid allocations.
  Image& scratch();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Copies `box`, which may extend beyond the image, without scaling. kReflect mirrors at the centres
// of the edge pixels (which are not repeated). `out` holds box.height * box.width * 3 bytes.
void crop_padded(const Image& in, const Box& box, PadMode mode, uint8_t* out);

// The position of index `i`, possibly outside [0, size), in an image padded by `mode`; -1: none.
SATURATE_HOST_DEVICE inline int padded_index(int i, int size, PadMode mode) {
  if (i >= 0 && i < size) return i;
  if (mode == PadMode::kZero) return -1;
  const int period = size > 1 ? 2 * (size - 1) : 1;
  i = (i % period + period) % period;
  return i < size ? i : period - i;
}

// The levels that make_normalize() maps to nearly 0: of letterbox's padding, and of erased boxes.
std::array<uint8_t, 3> mean_levels(const AugmentOptions& options);

// Crops, resizes unless the crop has the output's size already, pads or shifts, and flips: uint8,
// [size.height, size.width, 3].
void apply_transform(const AugmentOptions& options, const SampleTransform& transform,
                     const Image& in, Resizer& resizer, uint8_t* out);

// Fails with kUsage unless mean and std have three values each and every std is positive.
Normalize make_normalize(const AugmentOptions& options);

// Output type and normalisation of a sample's levels; kUint8 is not normalised.
struct PixelFormat {
  PixelType type = PixelType::kUint8;
  Normalize normalize{};
};
SATURATE_HOST_DEVICE constexpr size_t bytes_of(PixelType type) {
  return type == PixelType::kFloat32 ? 4 : type == PixelType::kUint8 ? 1 : 2;
}
// `in` is whole pixels of interleaved RGB; `out` holds as many values of format.type.
void convert_pixels(const PixelFormat& format, std::span<const uint8_t> in, std::byte* out);
// The same as planes, [3, pixels]. REQUIRES: format.type is not kUint8.
void convert_to_planes(const PixelFormat& format, std::span<const uint8_t> in, std::byte* out);

// uint8 [n, 3] interleaved to float [n, 3] interleaved (NHWC, torch's channels_last).
void normalize_pixels(const Normalize& normalize, std::span<const uint8_t> in, float* out);

}  // namespace saturate
