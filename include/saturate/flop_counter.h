// Counts the multiplications and additions of convolutions and matrix products as they are called.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>

namespace saturate {

// A multiplication and an addition count as two. By the shapes of what operators are given, as
// torch.utils.flop_counter counts: everything but convolutions, matrix products and attention is
// left out, and attention's backward counts five products. Operators that a compiled step contains
// are not seen, those that checkpointing runs again count again.
//
// Counts what the thread that made it calls while it lives, and what autograd calls for that.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  int64_t flop() const { return flop_; }

  // For the callback.
  void add(int64_t flop) { flop_ += flop; }

 private:
  std::atomic<int64_t> flop_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace saturate
