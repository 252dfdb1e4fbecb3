// A dataset whose images lie on the device that trains, as bytes: data.cache=device.
//
// Every sample is decoded once, cut and resized as evaluation does it. The loader then says only
// where in an image a sample's pixels are and what to do to them (LoaderOptions::places), and the
// feeder takes them from there, on the device. With data.decode=exact the batches are those of a
// loader that decodes each time, bit for bit; kRandomResized, which cuts from the whole photograph,
// is not possible.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/input.h"
#include "saturate/loader.h"

namespace saturate {

class ResidentDataset : public Dataset {
 public:
  // Reads all of `source`, which must outlive this, as `options` say (threads, decode, on_error).
  // `where` names it in messages. `progress` is told how far that is, on the caller's thread, and
  // may throw to give up. Fails with kUsage where the device has no room, before anything is read
  // on the CPU; and as Loader::next().
  ResidentDataset(const Dataset& source, const std::string& where, LoaderOptions options,
                  const AugmentOptions& augment, const at::Device& device,
                  const ProgressCallback& progress = {});

  // [size(), S, S, 3] uint8 on the device, S = augment.size; undefined where a sample is broken.
  const at::Tensor& images() const { return images_; }

  size_t size() const override { return source_.size(); }
  const std::vector<std::string>& classes() const override { return source_.classes(); }
  // Label and name, without bytes. A sample that was left out fails as it does in `source`.
  void read(size_t index, Sample& out) const override;

 private:
  static constexpr int64_t kLeftOut = INT64_MIN;  // no dataset's label
  void fill(Loader& loader, const ProgressCallback& progress);

  const Dataset& source_;
  at::Tensor images_;
  std::vector<int64_t> labels_;  // kLeftOut where the sample is broken
  std::vector<std::string> names_;
};

}  // namespace saturate
