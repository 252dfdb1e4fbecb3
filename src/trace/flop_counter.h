// Counts the floating-point operations of convolutions and matrix products as they are called.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>

namespace saturate {

// A multiply-add counts as two. Computed from operator shapes like torch.utils.flop_counter:
// everything except convolutions, matrix products and attention is ignored, and attention's
// backward counts five products. Operators inside a compiled step are not seen; those rerun by
// gradient checkpointing count again.
//
// Counts calls of the creating thread during its lifetime, and of autograd on its behalf.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  int64_t flop() const { return flop_; }

  // Used by the callback.
  void add(int64_t flop) { flop_ += flop; }

 private:
  std::atomic<int64_t> flop_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace saturate
