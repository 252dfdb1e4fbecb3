#include "data/read_ahead.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "saturate/data/error.h"

namespace saturate {

namespace {

constexpr uint64_t kFirstBytes = 16 << 20;  // announced before the first batch of all
constexpr size_t kForDiskAtATime = 256;     // samples

// A failure is reported by the read that meets it.
void advise(const Dataset& data, ReadAdvice advice, size_t first, size_t count,
            ImageRows rows = {}) {
  try {
    rows.is_all() ? data.advise(advice, first, count) : data.advise_rows(advice, first, rows);
  } catch (const Error&) {
  }
}

}  // namespace

ReadAhead::ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed,
                     size_t in_flight, bool idle, const LoaderOptions* training, CropRows* rows,
                     LaterEpochs later)
    : data_(data),
      shuffle_(shuffle),
      seed_(seed),
      in_flight_(in_flight),
      rows_(rows),
      budget_(idle ? 0 : data.look_ahead()),
      later_(std::move(later)) {
  if (budget_ == 0 && !idle && shuffle.mode == ShuffleMode::kBlock)
    thread_ = std::make_unique<ThreadPool>(1, "read-ahead");
  if (!training || training->shard.local_size == 0) return;
  shard_ = training->shard;
  if (shard_.local_size < shard_.world) batch_ = training->batch;
}

ReadAhead::~ReadAhead() {
  withdraw();
  withdraw_later();
}

void ReadAhead::start(uint32_t epoch, size_t place, const std::vector<uint32_t>& order,
                      size_t first, size_t end) {
  if (budget_ > 0) {
    withdraw();
    if (first > 0 || uint64_t{epoch} != uint64_t{epoch_} + 1) withdraw_later();
    order_.assign(order.begin(), order.begin() + ptrdiff_t(end));
    delivered_ = next_ = std::min(first, end);
    if (batch_ > 0) look_at_later_epochs(epoch);
    epoch_ = epoch;
    take_later();
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
  has_delivered_ = has_delivered_ || delivered > delivered_;
  for (; delivered_ < delivered; ++delivered_) {
    if (sizes_.empty()) continue;  // it was never announced
    announced_ -= sizes_.front();
    sizes_.pop_front();
    if (!later_order_.empty()) unread_[order_[delivered_]] = false;
  }
  next_ = std::max(next_, delivered_);
  // Less at first: for most images the rows are then chosen after the link has been measured.
  const uint64_t budget = has_delivered_ ? budget_ : std::min(budget_, kFirstBytes);
  for (; next_ < order_.size(); ++next_) {
    const uint32_t index = order_[next_];
    const uint64_t bytes = data_.bytes(index);
    const bool is_full = announced_ + bytes > budget || sizes_.size() >= kMostAnnounced;
    if (sizes_.size() >= in_flight_ && is_full) return announce_to_disk();
    advise(data_, {ReadAdvice::kSoon, next_use(index, 0)}, index, 1,
           rows_ ? rows_->choose(index) : ImageRows());
    sizes_.push_back(bytes);
    announced_ += bytes;
  }
  if (later_.order && uint64_t{epoch_} + 1 < later_.count) announce_later();
}

void ReadAhead::announce_to_disk() {
  if (!has_delivered_) return;
  stored_ = std::max(stored_, next_);
  const size_t more = in_flight_ + kForDiskAtATime;  // than are delivered until the next call
  const size_t end = std::min({order_.size(), delivered_ + kMostAnnounced, stored_ + more});
  for (; stored_ < end; ++stored_) advise(data_, ReadAdvice::kToDisk, order_[stored_], 1);
}

// With what this epoch leaves of the budget, and at most half of it.
void ReadAhead::announce_later() {
  if (later_order_.empty()) {
    later_order_ = later_.order(epoch_ + 1);
    unread_.assign(data_.size(), false);
    for (size_t i = delivered_; i < order_.size(); ++i) unread_[order_[i]] = true;
  }
  while (later_sizes_.size() < later_order_.size()) {
    const uint32_t index = later_order_[later_sizes_.size()];
    const uint64_t bytes = data_.bytes(index), later = later_announced_ + bytes;
    // A source knows a range once: a sample that this epoch still reads is announced after that.
    if (unread_[index] || later > budget_ / 2 || announced_ + later > budget_) return;
    if (sizes_.size() + later_sizes_.size() >= kMostAnnounced) return;
    advise(data_, {ReadAdvice::kLater, next_use(index, 1)}, index, 1,
           rows_ ? rows_->choose_for_next(index) : ImageRows());
    later_sizes_.push_back(bytes);
    later_announced_ = later;
  }
}

void ReadAhead::take_later() {
  sizes_ = std::exchange(later_sizes_, {});
  announced_ = std::exchange(later_announced_, 0);
  later_order_.clear();
  for (; next_ < sizes_.size(); ++next_) {
    const uint32_t index = order_[next_];
    advise(data_, {ReadAdvice::kSoon, next_use(index, 0)}, index, 1,
           rows_ ? rows_->choose(index) : ImageRows());
  }
}

// An order of one machine needs none: it reads every sample once in each epoch, so that no choice
// of samples to keep is better than another.
uint64_t ReadAhead::next_use(uint32_t index, int after) const {
  if (batch_ == 0) return ReadAdvice::kUnknown;
  return uint64_t{epoch_} + 1 + uint64_t(after) +
         uint64_t(std::countr_zero(uint8_t(visits_[index] >> after)));
}

// The places of an epoch that belong to this machine are those of rank_order() for its ranks.
void ReadAhead::look_at_later_epochs(uint32_t epoch) {
  const bool goes_on = !visits_.empty() && epoch == epoch_ + 1;
  if (!goes_on) visits_.assign(data_.size(), 0);
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
  const size_t end = std::max(delivered_ + sizes_.size(), stored_);
  for (size_t i = delivered_; i < end; ++i) advise(data_, ReadAdvice::kNotAgain, order_[i], 1);
  sizes_.clear();
  announced_ = 0;
  stored_ = 0;
}

void ReadAhead::withdraw_later() {
  for (size_t i = 0; i < later_sizes_.size(); ++i)
    advise(data_, ReadAdvice::kNotAgain, later_order_[i], 1);
  later_sizes_.clear();
  later_announced_ = 0;
}

}  // namespace saturate
