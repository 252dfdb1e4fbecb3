// The stages of a batch between the loader and the step: the same in order and in a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include "saturate/feed.h"

namespace saturate {

// Memory of the host for copies to a GPU: pinned or, if there is no more of that, plain, from which
// copies are slower. A warning says so once.
at::Tensor host_bytes(int64_t bytes);

at::ScalarType scalar_type(PixelType type);

// Every method may be called from any thread, for one batch at a time.
class BatchStages {
 public:
  BatchStages(const at::Device& device, bool channels_last, const AugmentOptions& augment,
              HeldImages held);

  const at::Device& device() const { return device_; }

  // Moves the loader's batch, and its names, to an unfinished batch on the device, and decodes its
  // packed samples there, which normalises them if they have no effects; tensors to a finished one,
  // unless they have unfinished volumes. `async`: a GPU's copies may still be in flight afterwards,
  // on its current stream; the memory of `batch` must be kept until they are done.
  void copy(Batch& batch, DeviceBatch& out, bool async) const;
  // Computes images and labels: effects, normalisation, layout. Does nothing if they exist already.
  void finish(DeviceBatch& batch) const;

 private:
  at::Tensor floats(const Batch& batch, bool async) const;
  at::Tensor raw_bytes(const std::shared_ptr<std::byte>& memory, at::IntArrayRef shape,
                       bool async) const;
  template <class... Parts>
  at::Tensor gathered(const Batch& batch, bool async, Parts BatchSample::*... parts) const;
  void copy_packed(const Batch& batch, DeviceBatch& out, bool async) const;
  void set_held(const DeviceBatch& batch, FinishArguments& task) const;
  at::Tensor finished(const DeviceBatch& batch) const;

  const at::Device device_;
  const bool channels_last_;
  const ImageSize size_;  // of held images, once cropped
  const Normalize normalize_;
  const PadMode pad_mode_;
  const PixelType output_;  // type of the finished images
  const bool blurs_;
  const HeldImages held_;
};

}  // namespace saturate
