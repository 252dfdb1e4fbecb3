// Converts a sample index to pixels in a batch, on one loader thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/batch_room.h"
#include "data/crop_rows.h"
#include "data/volume_fields.h"
#include "image/fast_decoder.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/image.h"
#include "saturate/data/loader.h"

namespace saturate {

// Keeps codec state and scratch memory between samples. Not for concurrent use: one per thread.
class SampleReader {
 public:
  // `index`, if there is one, is used and extended by fast decoding. `rows`, if there are any, are
  // those of the epoch that is read. Both must outlive this.
  SampleReader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
               ScanIndex* index = nullptr, const CropRows* rows = nullptr);

  // Reads sample `sample.index` as the loader's options specify: writes its pixels to `out`, not
  // used with kPlaces, and sets all of `sample` but the name. Random parameters depend on (seed,
  // epoch, index) only.
  void read(uint32_t epoch, BatchSample& sample, std::byte* out);
  // The same to a place in `room`. REQUIRES: options.packs.
  void read(uint32_t epoch, BatchSample& sample, BatchRoom& room);

  // Reads sample `sample.index` of a source of tensors, and writes field i of batch_fields() to
  // address(i), as VolumeFields::write(); sets all of `sample` but the name.
  void read_tensors(uint32_t epoch, BatchSample& sample, const SequenceExtent& extent,
                    const std::function<std::byte*(size_t)>& address);

  // The mask of the last sample read, transformed by the same geometry, including effects left
  // unfinished: [height, width]. REQUIRES: options.masks.
  void read_mask(uint8_t* out);

  // The name of the last sample read; empty if the dataset failed before setting it.
  const std::string& name() const { return *name_; }

 private:
  // Augments by the options of that epoch from now on.
  void begin(uint32_t epoch);
  // The values of an image.
  size_t values() const { return size_t(augment_.size.area()) * 3; }
  // The transform of a sample of that size; remembered for its mask.
  SampleTransform transform(uint32_t epoch, uint32_t index, int width, int height);
  // kPlaces: the label, and where the pixels are held.
  void locate(uint32_t epoch, BatchSample& sample);
  // Fails with what is wrong with a sample that is not held.
  [[noreturn]] void fail_broken(uint32_t index);
  // Reads, crops, resizes, shifts and flips into `out`: [height, width, 3]. Returns the label.
  int64_t read_pixels(uint32_t epoch, uint32_t index, uint8_t* out);
  void read_encoded(uint32_t epoch, uint32_t index, uint8_t* out);
  // Both write sample_ to `out`, or to a place that they take. False if only the exact path can.
  bool read_fast(uint32_t epoch, uint32_t index, uint8_t* out);
  // The same as pack(), for segmented_, which fast_ has not opened; empty if only open() can tell.
  std::optional<bool> pack_segments(uint32_t epoch, uint32_t index);
  // Packs the JPEG that fast_ has open into room_; false if it cannot be packed, has no room, or
  // the sample has a place already.
  bool pack(const SampleTransform& transform);
  // Where the pixels go: `out`, or with room_ a place in that.
  uint8_t* place_of_pixels(uint8_t* out);
  void read_exact(uint32_t epoch, uint32_t index, uint8_t* out);
  void write(const Image& image, const SampleTransform& transform, uint8_t* out);

  const Dataset& dataset_;
  const LoaderOptions& options_;
  const CropRows* const rows_;  // may be null
  const AugmentOptions& all_epochs_;
  AugmentOptions augment_;  // of the last sample's epoch
  uint32_t epoch_ = 0;
  const PixelFormat format_;  // of the batch
  FastDecoder fast_;
  SegmentedJpeg segmented_;
  Decoder decoder_;
  Resizer resizer_;
  Sample sample_;
  const std::string* name_ = &sample_.name;  // or the dataset's own
  Image image_;
  // The last sample's size, its random transform, and its mask if that is kept decoded.
  int width_ = 0, height_ = 0;
  SampleTransform drawn_;
  EffectList drawn_effects_;
  // Set by the last read() to a room: the room, and the sample's place there.
  BatchRoom* room_ = nullptr;
  std::optional<PackedPlace> stored_;
  const ClassMap* kept_mask_ = nullptr;
  ClassMap mask_;
  EffectScratch effects_;
  std::vector<uint8_t> levels_;  // [height, width, 3], before they become format_'s
  VolumeFields volumes_;
};

}  // namespace saturate
