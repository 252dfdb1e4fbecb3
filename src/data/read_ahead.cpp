#include "data/read_ahead.h"

#include <algorithm>

#include "saturate/data/error.h"

namespace saturate {

ReadAhead::ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed)
    : data_(data), shuffle_(shuffle), seed_(seed) {
  if (shuffle.mode == ShuffleMode::kBlock) thread_ = std::make_unique<ThreadPool>(1, "read-ahead");
}

void ReadAhead::start(uint32_t epoch, size_t place) {
  if (!thread_) return;
  const auto block = size_t(shuffle_.block);
  blocks_ = epoch_blocks(data_.size(), seed_, epoch, block);
  next_ = std::min(place / block / kShuffleWindow * kShuffleWindow, blocks_.size());
  advance(place);
}

void ReadAhead::advance(size_t place) {
  if (!thread_) return;
  const auto block = size_t(shuffle_.block);
  const size_t wanted = std::min(place / block + 2 * kShuffleWindow, blocks_.size());
  for (; next_ < wanted; ++next_) {
    const size_t first = blocks_[next_] * block, count = std::min(block, data_.size() - first);
    thread_->submit([this, first, count] {
      try {
        data_.advise(ReadAdvice::kSoon, first, count);
      } catch (const Error&) {
        // Reading will fail in the same way, and report it.
      }
    });
  }
}

}  // namespace saturate
