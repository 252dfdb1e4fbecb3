// The stages of a batch between the loader and the step: the same in order and in a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include "saturate/feed.h"

namespace saturate {

// A batch in flight.
struct BatchWork {
  Batch batch;                         // the loader's batch; until the copy is done
  at::Tensor pixels, effects, places;  // on the device, if the loader provides them
  DeviceBatch out;
  bool is_unfinished() const { return batch.type == PixelType::kUint8; }
};

// Every method may be called from any thread, for one batch at a time.
class BatchStages {
 public:
  BatchStages(const at::Device& device, bool channels_last, const AugmentOptions& augment,
              HeldImages held);

  const at::Device& device() const { return device_; }

  // Moves the loader's batch to the device. `async`: a GPU's copies may still be in flight
  // afterwards, on its current stream; `work.batch` must be kept until they are done.
  void copy(BatchWork& work, bool async) const;
  // Builds work.out, except features: effects, normalisation, layout, labels, mixing.
  void finish(BatchWork& work) const;
  // The same in two steps, except mixing: leave() only stores the inputs, complete() builds the
  // batch without the loader's memory.
  void leave(BatchWork& work) const;
  void complete(DeviceBatch& batch) const;

 private:
  at::Tensor moved(const Batch& batch, bool async) const;
  void set_held(const UnfinishedBatch& batch, FinishBatch& task) const;
  at::Tensor finished(const UnfinishedBatch& batch, int64_t count) const;
  at::Tensor to_device(const void* bytes, int64_t size, bool async) const;
  at::Tensor labels(const Batch& batch, bool async) const;

  const at::Device device_;
  const bool channels_last_;
  const Normalize normalize_;
  const PadMode pad_mode_;
  const PixelType output_;  // type of the finished images
  const bool blurs_;
  const HeldImages held_;
};

}  // namespace saturate
