// A dataset whose images lie on the device that trains, as bytes: data.cache=device.
//
// Every sample is decoded once, cut and resized as evaluation does it; those of training under
// kRandomResized, which cuts from the photograph, are kept whole. The loader then says only where
// in an image a sample's pixels are and what to do to them (LoaderOptions::places), and the feeder
// takes them from there, on the device. With data.decode=exact the batches are those of a loader
// that decodes each time, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/held_images.h"
#include "saturate/input.h"
#include "saturate/loader.h"

namespace saturate {

class ResidentDataset : public Dataset {
 public:
  // Reads all of `source`, which must outlive this, as `options` say (train, threads, decode,
  // on_error). `where` names it in messages. `progress` is told how far that is, on the caller's
  // thread, and may throw to give up. Fails with kUsage where the device has no room: before
  // anything is read, or, of images kept whole, whose sizes only reading tells, at the first that
  // has none; and as Loader::next(). Images kept whole are decoded by `exact`.
  ResidentDataset(const Dataset& source, const std::string& where, LoaderOptions options,
                  const AugmentOptions& augment, const at::Device& device,
                  const ProgressCallback& progress = {});

  // On the device, S = augment.size; undefined bytes, or no pixels, where a sample is broken.
  const HeldImages& held() const { return held_; }

  size_t size() const override { return source_.size(); }
  const std::vector<std::string>& classes() const override { return source_.classes(); }
  // Label and name, without bytes. A sample that was left out fails as it does in `source`.
  void read(size_t index, Sample& out) const override;

 private:
  static constexpr int64_t kLeftOut = INT64_MIN;  // no dataset's label
  struct Side {
    int width, height;
  };
  void fill(Loader& loader, const ProgressCallback& progress);
  void fill_whole(const LoaderOptions& options, const AugmentOptions& augment,
                  const at::Device& device, const std::string& where,
                  const ProgressCallback& progress);

  const Dataset& source_;
  HeldImages held_;
  std::vector<Side> sides_;      // [size()] of images held whole, 0 where the sample is broken
  std::vector<int64_t> labels_;  // kLeftOut where the sample is broken
  std::vector<std::string> names_;
};

}  // namespace saturate
