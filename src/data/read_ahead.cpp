#include "data/read_ahead.h"

#include <algorithm>

#include "saturate/data/error.h"

namespace saturate {

namespace {

// A failure is reported by the read that meets it.
void advise(const Dataset& data, ReadAdvice advice, size_t first, size_t count) {
  try {
    data.advise(advice, first, count);
  } catch (const Error&) {
  }
}

}  // namespace

ReadAhead::ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed,
                     size_t in_flight, bool idle)
    : data_(data),
      shuffle_(shuffle),
      seed_(seed),
      in_flight_(in_flight),
      budget_(idle ? 0 : data.look_ahead()) {
  if (budget_ == 0 && !idle && shuffle.mode == ShuffleMode::kBlock)
    thread_ = std::make_unique<ThreadPool>(1, "read-ahead");
}

ReadAhead::~ReadAhead() {
  withdraw();
}

void ReadAhead::start(uint32_t epoch, size_t place, const std::vector<uint32_t>& order,
                      size_t first, size_t end) {
  if (budget_ > 0) {
    withdraw();
    order_.assign(order.begin(), order.begin() + ptrdiff_t(end));
    delivered_ = next_ = std::min(first, end);
    return announce(delivered_);
  }
  if (!thread_) return;
  const auto block = size_t(shuffle_.block);
  blocks_ = epoch_blocks(data_.size(), seed_, epoch, block);
  next_ = std::min(place / block / kShuffleWindow * kShuffleWindow, blocks_.size());
  hint_blocks(place);
}

void ReadAhead::advance(size_t place, size_t first) {
  if (budget_ > 0) return announce(std::min(first, order_.size()));
  if (thread_) hint_blocks(place);
}

void ReadAhead::hint_blocks(size_t place) {
  const auto block = size_t(shuffle_.block);
  const size_t wanted = std::min(place / block + 2 * kShuffleWindow, blocks_.size());
  for (; next_ < wanted; ++next_) {
    const size_t first = blocks_[next_] * block, count = std::min(block, data_.size() - first);
    thread_->submit([this, first, count] { advise(data_, ReadAdvice::kSoon, first, count); });
  }
}

void ReadAhead::announce(size_t delivered) {
  for (; delivered_ < delivered; ++delivered_) {
    if (sizes_.empty()) continue;  // it was never announced
    announced_ -= sizes_.front();
    sizes_.pop_front();
  }
  next_ = std::max(next_, delivered_);
  for (; next_ < order_.size(); ++next_) {
    const uint64_t bytes = data_.bytes(order_[next_]);
    if (sizes_.size() >= in_flight_ && announced_ + bytes > budget_) return;
    advise(data_, ReadAdvice::kSoon, order_[next_], 1);
    sizes_.push_back(bytes);
    announced_ += bytes;
  }
}

void ReadAhead::withdraw() {
  for (size_t i = 0; i < sizes_.size(); ++i)
    advise(data_, ReadAdvice::kNotAgain, order_[delivered_ + i], 1);
  sizes_.clear();
  announced_ = 0;
}

}  // namespace saturate
