// One loader thread's way from a sample's index to its pixels in a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "image/fast_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/augment.h"
#include "saturate/dataset.h"
#include "saturate/effects.h"
#include "saturate/image.h"
#include "saturate/loader.h"

namespace saturate {

// Keeps codec state and scratch memory between samples. Not for concurrent use: one per thread.
class SampleReader {
 public:
  SampleReader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment);

  // Writes the pixels of sample `index`, as the loader's options say, to `out` and returns
  // the label; effects are put into `unfinished` where that is not null, else carried out. Random
  // parameters depend on (seed, epoch, index) alone.
  int64_t read(uint32_t epoch, uint32_t index, std::byte* out, EffectList* unfinished = nullptr);

  // The mask of the sample read last, taken through the same geometry, effects left to others
  // included: [size, size]. REQUIRES: options.masks.
  void read_mask(uint8_t* out);

  // Says where the pixels of sample `index` are and what is left to do to them, and returns the
  // label. Reads the sample, for whose images the dataset need give no bytes.
  int64_t locate(uint32_t epoch, uint32_t index, HeldPlace& place, EffectList& effects);

  // The name of the sample read last; empty when the dataset failed before it named it.
  const std::string& name() const { return *name_; }

 private:
  // What happens to the pixels of a sample of that size; remembered for its mask.
  SampleTransform transform(uint32_t epoch, uint32_t index, int width, int height);
  // What read() gives, [size, size, 3] in any case.
  int64_t read_augmented(uint32_t epoch, uint32_t index, std::byte* out,
                         EffectList* unfinished = nullptr);
  // Read, cut, resized, shifted and flipped into `out`. Gives the label.
  int64_t read_pixels(uint32_t epoch, uint32_t index, const PixelFormat& format, std::byte* out);
  // Both make `out` of sample_. False where only the exact path can.
  bool read_fast(uint32_t epoch, uint32_t index, const PixelFormat& format, std::byte* out);
  void read_exact(uint32_t epoch, uint32_t index, const PixelFormat& format, std::byte* out);
  void write(const Image& image, const SampleTransform& transform, const PixelFormat& format,
             std::byte* out);

  const Dataset& dataset_;
  const LoaderOptions& options_;
  const AugmentOptions& augment_;
  const PixelFormat format_;
  FastDecoder fast_;
  SegmentedJpeg segmented_;
  Decoder decoder_;
  Resizer resizer_;
  Sample sample_;
  const std::string* name_ = &sample_.name;  // or the dataset's own
  Image image_;
  // Of the sample read last: its size, what was drawn for it, and its mask where that is kept
  // decoded.
  int width_ = 0, height_ = 0;
  SampleTransform drawn_;
  EffectList drawn_effects_;
  const ClassMap* kept_mask_ = nullptr;
  ClassMap mask_;
  EffectScratch effects_;
  std::vector<uint8_t> scratch_;        // [size, size, 3], for all but kUint8
  std::vector<std::byte> interleaved_;  // the same as it is handed out, for planar
};

}  // namespace saturate
