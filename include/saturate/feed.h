// From the loader's batches to tensors on the device that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "saturate/ledger.h"
#include "saturate/loader.h"

namespace saturate {

struct DeviceBatch {
  at::Tensor images;  // [N, 3, S, S] float or bfloat16, channels_last where asked, on the device
  at::Tensor labels;  // [N] int64, on the device
  std::vector<std::string> names;  // [N], where the loader gives them
  // Of mixed images: `labels` are the heavier ones, with weight lambda, and these have the rest.
  at::Tensor mixed_labels = {};  // [N] int64, on the device; undefined where nothing is mixed
  double lambda = 1;             // 0.5 to 1
  int64_t whole = 0;             // images of the step over all processes
  int64_t count() const { return labels.defined() ? labels.size(0) : 0; }
};

// Page-locked memory for a GPU, plain memory (the loader's own) for the CPU.
BufferAllocator batch_allocator(const at::Device& device);

// Mixes images and labels on their device, the images in place: there the pixels pass through the
// fastest memory, and the loader's batches stay what their samples alone make them. REQUIRES:
// batch.images [N, 3, S, S], not needed as they were; mix.offset < N.
void mix_batch(const Mix& mix, DeviceBatch& batch);

// Whether this build can carry out a batch's effects and normalise it on a GPU.
bool has_finish_kernel();

// Takes batches from `loader`, which must outlive it. On the CPU the tensors share the loader's
// memory, which returns to its pool when the last tensor is gone: nothing is copied. On a GPU the
// copy has been made when next() returns. Batches of bytes, or of places in resident
// images, are finished on the device, on its current stream: their effects, then `augment`'s
// normalisation. Waiting is charged to kWait,
// moving to kCopy, finishing to kAugment.
class Feeder {
 public:
  // `resident`: a ResidentDataset's images, on `device`, which the loader's places refer to.
  Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger,
         const AugmentOptions& augment = {}, at::Tensor resident = {});
  // False at the end of the epoch.
  bool next(DeviceBatch& out);

  // From now on next() gives this batch every time, and leaves the loader alone.
  void hold(DeviceBatch batch) { held_ = std::move(batch); }
  void release() { held_.reset(); }
  bool holds() const { return held_.has_value(); }

 private:
  // [N, 3, S, S] on the device, of the batch's floats or its bytes.
  at::Tensor moved(const Batch& batch) const;
  at::Tensor finished(const Batch& batch) const;
  at::Tensor to_device(const void* bytes, int64_t size) const;

  Loader& loader_;
  at::Device device_;
  bool channels_last_;
  Normalize normalize_;
  PadMode pad_mode_;
  at::ScalarType output_;  // of what is finished here
  at::Tensor resident_;    // [N, S, S, 3] uint8, or undefined
  Ledger& ledger_;
  std::optional<DeviceBatch> held_;
};

}  // namespace saturate
