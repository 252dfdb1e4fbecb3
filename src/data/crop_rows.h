// The rows of images that an epoch's crops need: known before an image is read, since the crop is a
// function of the seed, the epoch, the sample and the image's size.
#pragma once

#include <cstdint>

#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/loader.h"

namespace saturate {

// The transform of a training image of that size.
SampleTransform training_transform(const AugmentOptions& augment, const SampleKey& key, int width,
                                   int height);

// Chooses the images of which only a part is read: those in random order, since neighbours are
// fetched by one request, of a source where the bytes that this saves are worth a further request
// (Dataset::request_bytes). That is measured before each epoch, so that announcing an image and
// reading it come to the same result.
class CropRows {
 public:
  // All must outlive this.
  CropRows(const Dataset& data, const LoaderOptions& options, const AugmentOptions& augment);
  // REQUIRES: no other thread uses this.
  void begin(uint32_t epoch);
  ImageRows of(uint32_t index) const;

 private:
  const Dataset& data_;
  const LoaderOptions& options_;
  const AugmentOptions& all_epochs_;
  const bool random_;
  AugmentOptions augment_;  // of the epoch
  uint32_t epoch_ = 0;
  uint64_t request_bytes_ = UINT64_MAX;
};

}  // namespace saturate
