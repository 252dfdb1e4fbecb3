// Hints to a source which blocks of samples an epoch of ShuffleMode::kBlock reads next, so that
// slow storage can read each in one go and in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "saturate/data/dataset.h"
#include "saturate/data/loader.h"

namespace saturate {

// The block order that epoch_order() uses for kBlock.
std::vector<uint32_t> epoch_blocks(size_t size, uint64_t seed, uint32_t epoch, size_t block);

// For the loader's consumer only. Hints are given on a separate thread: on some systems they block
// until reading has begun.
class ReadAhead {
 public:
  // Does nothing in other modes. `data` must outlive this.
  ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed);

  // An epoch begins at index `place` of its order.
  void start(uint32_t epoch, size_t place);
  // The samples before `place` have been delivered: hints for those of this window and the next.
  void advance(size_t place);

 private:
  const Dataset& data_;
  const ShuffleOptions shuffle_;
  const uint64_t seed_;
  std::vector<uint32_t> blocks_;  // of the epoch
  size_t next_ = 0;               // next of blocks_ to hint
  std::unique_ptr<ThreadPool> thread_;
};

}  // namespace saturate
