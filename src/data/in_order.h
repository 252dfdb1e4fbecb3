// Reads of all samples of a source in its order, announced: to a source that is far away, whose
// reads would otherwise wait for one reply each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "saturate/data/dataset.h"

namespace saturate {

// Does nothing for other sources. Safe for concurrent use.
class InOrder {
 public:
  // `data` must outlive this.
  explicit InOrder(const Dataset& data);
  // Withdraws what was not read.
  ~InOrder();
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

  // A thread reads the sample next. Announces those after it, up to Dataset::look_ahead() bytes.
  // To be called once for each sample, about in their order.
  void before(size_t index) TAKES_LOCK(mutex_);

 private:
  const Dataset& data_;
  const uint64_t budget_;
  Mutex mutex_;
  size_t next_ GUARDED_BY(mutex_) = 0;                       // to be announced
  std::map<size_t, uint64_t> announced_ GUARDED_BY(mutex_);  // bytes of each that is not read yet
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;                    // their sum
};

}  // namespace saturate
