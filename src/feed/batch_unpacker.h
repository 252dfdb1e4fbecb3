// Packed JPEGs of a batch to pixels, on the training device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "saturate/data/loader.h"

namespace saturate {

// Whether a GPU could decode the packed samples of a batch. It is known when the device has decoded
// them: the flags are copied to the host, and read once the copy is done. Belongs to one thread.
class UnpackCheck {
 public:
  // `failed` [samples] is on the GPU, whose current stream sets it and copies it.
  UnpackCheck(std::vector<uint32_t> samples, const at::Tensor& failed);
  // Whether it is known; with `wait` it waits for that. Fails with kData, naming the sample of
  // `loader`, if one was not decoded.
  bool passes(bool wait, const Loader& loader) const;

 private:
  const std::vector<uint32_t> samples_;  // indices into the dataset
  const at::Tensor failed_;              // on the host
  c10::Event copied_;
};

// Bytes from the start of a packing loader's batch to the end of its last sample.
int64_t bytes_in_use(const Batch& batch);

// The pixels [N, H, W, 3], or if `planar` [N, 3, H, W], of the N samples of `batch`, as `format`
// says: those of packed JPEGs, and those of the others from memory. `memory` holds bytes_in_use()
// of it, and `places` its N PackedPlaces; all is uint8 on one device, whose current stream does the
// work. On the CPU fails with kData, naming the sample, if one cannot be decoded; on a GPU sets
// `check`.
at::Tensor unpack_batch(const Batch& batch, const at::Tensor& memory, const at::Tensor& places,
                        const PixelFormat& format, bool planar,
                        std::shared_ptr<UnpackCheck>& check);

}  // namespace saturate
