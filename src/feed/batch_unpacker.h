// Packed JPEGs of a batch to pixels, on the training device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "saturate/data/loader.h"

namespace saturate {

// A JPEG that cannot be decoded ends the run. On a GPU this is known later, without a wait: a
// batch's flags are copied to the host, and read once the copy is done.
//
// Not for concurrent use on a GPU; on the CPU there are no flags to wait for.
class BatchUnpacker {
 public:
  // The pixels [N, H, W, 3] of `slots`, which has this shape, where `packed` [N] is 1, and a copy
  // of the others; all uint8 on one device, whose current stream does the work. Fails with kData,
  // naming the sample, if one of an earlier batch was not decoded, on the CPU of this one.
  // REQUIRES: the N samples of `batch` are those of `slots`.
  at::Tensor unpack(const Batch& batch, const at::Tensor& slots, const at::Tensor& packed);
  // Fails in the same way if any sample so far was not decoded; `wait`: waits for the device, else
  // looks only at what it has done.
  void check(bool wait);

 private:
  struct Flags {
    std::vector<uint32_t> samples;  // indices into the dataset
    at::Tensor failed;              // [samples], on the host
    c10::Event copied;
  };
  std::deque<Flags> waiting_;  // in the order of the batches
};

}  // namespace saturate
