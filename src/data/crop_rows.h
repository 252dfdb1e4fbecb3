// The rows of images that an epoch's crops need: known before an image is read, since the crop is a
// function of the seed, the epoch, the sample and the image's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/loader.h"

namespace saturate {

// The transform of a training image of that size.
SampleTransform training_transform(const AugmentOptions& augment, const SampleKey& key, int width,
                                   int height);

// Mean share of the rows of a photograph of 500 x 375 pixels that training's crops need.
double mean_crop_rows(const AugmentOptions& augment);
// LinkUse::crop_share of a source, from some of its samples, which this reads: 1 if none are JPEGs,
// or if they are in segments already.
double crop_share_of(const Dataset& data, const AugmentOptions& augment);

// Chooses the images of which only a part is read: those in random order, since neighbours are
// fetched by one request, of a source that is far away and where the bytes that this saves are
// worth a further request (Dataset::request_bytes, as measured so far). An image is chosen when it
// is announced, and read in the same way. Images of the next epoch are chosen before it begins.
class CropRows {
 public:
  // All must outlive this.
  CropRows(const Dataset& data, const LoaderOptions& options, const AugmentOptions& augment);
  // REQUIRES: no other thread uses this. Keeps what choose_for_next() has chosen for this epoch.
  void begin(uint32_t epoch);
  // Called in the order of use, by one thread. A second call for an image repeats the first.
  ImageRows choose(uint32_t index) { return choose(now_, index); }
  // The same for the epoch after the one that has begun.
  ImageRows choose_for_next(uint32_t index);
  // As chosen, which must have happened before; all rows if it was not chosen. Any thread.
  ImageRows of(uint32_t index) const { return of(now_, index); }

 private:
  enum class Choice : uint8_t { kNone, kWhole, kPart };
  struct Epoch {
    uint32_t number = 0;
    AugmentOptions augment;
    std::vector<Choice> choices;  // by sample; empty: all are read whole
  };
  Epoch begun(uint32_t number) const;
  ImageRows choose(Epoch& epoch, uint32_t index);
  ImageRows of(const Epoch& epoch, uint32_t index) const;
  ImageRows rows_of(const Epoch& epoch, uint32_t index, const ImageSize& size) const;
  const Dataset& data_;
  const LoaderOptions& options_;
  const AugmentOptions& all_epochs_;
  const bool may_choose_;
  Epoch now_, next_;  // the latter without choices: none has been made
  uint64_t request_bytes_ = UINT64_MAX;
  size_t chosen_ = 0;  // since an epoch began
};

}  // namespace saturate
