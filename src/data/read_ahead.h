// Tells a source early which blocks of samples an epoch of ShuffleMode::kBlock comes to next, so
// that slow storage reads each in one go, and before it is waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "saturate/dataset.h"
#include "saturate/loader.h"
#include "saturate/thread_pool.h"

namespace saturate {

// The order of blocks behind epoch_order() of kBlock.
std::vector<uint32_t> epoch_blocks(size_t size, uint64_t seed, uint32_t epoch, size_t block);

// For the loader's consumer alone. Hints are given on a thread of their own: some systems answer
// them only when the reading has begun.
class ReadAhead {
 public:
  // Does nothing in other modes. `data` must outlive this.
  ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed);

  // An epoch begins at the sample of that place in its order.
  void start(uint32_t epoch, size_t place);
  // The samples before `place` have been handed out: hints at those of this window and the next.
  void advance(size_t place);

 private:
  const Dataset& data_;
  const ShuffleOptions shuffle_;
  const uint64_t seed_;
  std::vector<uint32_t> blocks_;  // of the epoch
  size_t next_ = 0;               // of blocks_, to be hinted at
  std::unique_ptr<ThreadPool> thread_;
};

}  // namespace saturate
