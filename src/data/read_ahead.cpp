#include "data/read_ahead.h"

#include <algorithm>
#include <bit>

#include "saturate/data/error.h"

namespace saturate {

namespace {

constexpr uint64_t kFirstBytes = 16 << 20;  // announced before the first batch

// A failure is reported by the read that meets it.
void advise(const Dataset& data, ReadAdvice advice, size_t first, size_t count,
            ImageRows rows = {}) {
  try {
    rows.is_all() ? data.advise(advice, first, count) : data.advise_rows(first, rows);
  } catch (const Error&) {
  }
}

}  // namespace

ReadAhead::ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed,
                     size_t in_flight, bool idle, const LoaderOptions* training, CropRows* rows)
    : data_(data),
      shuffle_(shuffle),
      seed_(seed),
      in_flight_(in_flight),
      rows_(rows),
      budget_(idle ? 0 : data.look_ahead()) {
  if (budget_ == 0 && !idle && shuffle.mode == ShuffleMode::kBlock)
    thread_ = std::make_unique<ThreadPool>(1, "read-ahead");
  if (!training || training->shard.local_size == 0) return;
  shard_ = training->shard;
  if (shard_.local_size < shard_.world) batch_ = training->batch;
}

ReadAhead::~ReadAhead() {
  withdraw();
}

void ReadAhead::start(uint32_t epoch, size_t place, const std::vector<uint32_t>& order,
                      size_t first, size_t end) {
  if (budget_ > 0) {
    withdraw();
    order_.assign(order.begin(), order.begin() + ptrdiff_t(end));
    delivered_ = next_ = first_ = std::min(first, end);
    if (batch_ > 0) look_at_later_epochs(epoch);
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
  // Less at first, so that the rows of most images are chosen when the link has been measured.
  const uint64_t budget = delivered > first_ ? budget_ : std::min(budget_, kFirstBytes);
  for (; next_ < order_.size(); ++next_) {
    const uint64_t bytes = data_.bytes(order_[next_]);
    if (sizes_.size() >= in_flight_ && announced_ + bytes > budget) return;
    ReadAdvice advice = ReadAdvice::kSoon;
    // An order of one machine needs none: it reads every sample once in each epoch, so that no
    // choice of samples to keep is better than another.
    if (batch_ > 0) advice.next_use = epoch_ + 1 + std::countr_zero(visits_[order_[next_]]);
    advise(data_, advice, order_[next_], 1, rows_ ? rows_->choose(order_[next_]) : ImageRows());
    sizes_.push_back(bytes);
    announced_ += bytes;
  }
}

// The places of an epoch that belong to this machine are those of rank_order() for its ranks.
void ReadAhead::look_at_later_epochs(uint32_t epoch) {
  const bool goes_on = !visits_.empty() && epoch == epoch_ + 1;
  if (!goes_on) visits_.assign(data_.size(), 0);
  epoch_ = epoch;
  for (uint8_t& visits : visits_) visits >>= 1;
  constexpr int kLast = 7;
  for (int k = goes_on ? kLast : 0; k <= kLast; ++k) {
    const auto order = epoch_order(data_.size(), seed_, epoch + 1 + uint32_t(k), shuffle_);
    for (size_t place = 0; place < order.size(); ++place) {
      const auto rank = int(place % batch_ % size_t(shard_.world)) - shard_.first_local;
      if (rank >= 0 && rank < shard_.local_size) visits_[order[place]] |= uint8_t(1 << k);
    }
  }
}

void ReadAhead::withdraw() {
  for (size_t i = 0; i < sizes_.size(); ++i)
    advise(data_, ReadAdvice::kNotAgain, order_[delivered_ + i], 1);
  sizes_.clear();
  announced_ = 0;
}

}  // namespace saturate
