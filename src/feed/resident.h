// A dataset's images on the training device, as bytes: data.cache=device.
//
// Every sample is decoded once, cropped and resized as in evaluation; training images under
// kRandomResized, which crops the original image, are kept whole. The loader then provides only the
// position and effects of a sample (BatchOutput::kPlaces), and the feeder takes its pixels on the
// device. With data.decode=exact the batches are bit-identical to those of a loader that decodes
// each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "saturate/feed.h"

namespace saturate {

// Memory for that many images of that size; fails with kUsage if `device` has too little.
at::Tensor allocate_images(int64_t count, const ImageSize& size, const at::Device& device,
                           const std::string& where);

class ResidentImages {
 public:
  // Reads all of `source` according to `options` (train, threads, decode, on_error). `where` names
  // it in messages. `progress` is called on the caller's thread, and may throw to cancel. Fails
  // with kUsage if the device has too little memory: before reading anything or, for whole images,
  // whose sizes are known only after reading, at the first that does not fit; and as
  // Loader::next(). Whole images are decoded by `exact`.
  ResidentImages(const Dataset& source, const std::string& where, LoaderOptions options,
                 const AugmentOptions& augment, const at::Device& device,
                 const ProgressCallback& progress = {});

  // On the device, of augment.size; undefined bytes, or no pixels, for a broken sample.
  const HeldImages& held() const { return held_; }
  // One for each sample of `source`: LoaderOptions::held.
  std::span<const HeldSample> samples() const { return samples_; }

 private:
  void fill(Loader& loader, const ProgressCallback& progress);
  void fill_whole(const Dataset& source, const LoaderOptions& options,
                  const AugmentOptions& augment, const at::Device& device, const std::string& where,
                  const ProgressCallback& progress);

  HeldImages held_;
  std::vector<HeldSample> samples_;
};

}  // namespace saturate
