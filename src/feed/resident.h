// A dataset whose images are on the training device, as bytes: data.cache=device.
//
// Every sample is decoded once, cropped and resized as in evaluation; training images under
// kRandomResized, which crops the original image, are kept whole. The loader then provides only the
// position and effects of a sample (LoaderOptions::places), and the feeder takes its pixels on the
// device. With data.decode=exact the batches are bit-identical to those of a loader that decodes
// each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "saturate/feed.h"

namespace saturate {

class ResidentDataset : public Dataset {
 public:
  // Reads all of `source`, which must outlive this, according to `options` (train, threads, decode,
  // on_error). `where` names it in messages. `progress` is called on the caller's thread, and may
  // throw to cancel. Fails with kUsage if the device has too little memory: before reading anything
  // or, for whole images, whose sizes are known only after reading, at the first that does not fit;
  // and as Loader::next(). Whole images are decoded by `exact`.
  ResidentDataset(const Dataset& source, const std::string& where, LoaderOptions options,
                  const AugmentOptions& augment, const at::Device& device,
                  const ProgressCallback& progress = {});

  // On the device, S = augment.size; undefined bytes, or no pixels, for a broken sample.
  const HeldImages& held() const { return held_; }

  size_t size() const override { return source_.size(); }
  const std::vector<std::string>& classes() const override { return source_.classes(); }
  // Label and name, without bytes. A skipped sample fails as it does in `source`.
  void read(size_t index, Sample& out) const override;

 private:
  static constexpr int64_t kLeftOut = INT64_MIN;  // never a dataset's label
  struct Side {
    int width, height;
  };
  void fill(Loader& loader, const ProgressCallback& progress);
  void fill_whole(const LoaderOptions& options, const AugmentOptions& augment,
                  const at::Device& device, const std::string& where,
                  const ProgressCallback& progress);

  const Dataset& source_;
  HeldImages held_;
  std::vector<Side> sides_;      // [size()] for whole images, 0 for a broken sample
  std::vector<int64_t> labels_;  // kLeftOut for a broken sample
  std::vector<std::string> names_;
};

}  // namespace saturate
