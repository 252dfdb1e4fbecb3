#include "data/batch_ring.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/cancel.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// How long the consumer waits between two looks whether it is cancelled.
constexpr std::chrono::seconds kConsumerLook{1};

}  // namespace

std::optional<std::string> SampleFailure::data_error() const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kData ? std::optional(e.reason()) : std::nullopt;
  } catch (...) {
    return std::nullopt;
  }
}

BatchRing::BatchRing(size_t slots, size_t batch, size_t most, std::chrono::nanoseconds wait_limit,
                     MemorySource provide)
    : batch_(batch),
      most_(most),
      wait_limit_(wait_limit),
      provide_memory_(std::move(provide)),
      slots_(slots) {}

void BatchRing::fail_waiting(const std::string& what) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait_limit_).count();
  fail(ErrorKind::kRun, what + " within " + std::to_string(seconds) + " s", "loader",
       "Look for storage that hangs under data.source");
}

void BatchRing::finish(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures) {
  const MutexLock lock(mutex_);
  report(claimed, failures);
  if (unclaimed() > 0) work_.notify_one();  // the caller would have claimed those
}

void BatchRing::report(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures) {
  if (!claimed) return;
  BatchSlot& slot = *claimed->slot;
  std::move(failures.begin(), failures.end(), std::back_inserter(slot.failures));
  failures.clear();
  set_busy(busy_ - 1);
  slot.left -= claimed->count;
  // The only consumer waits for a whole batch or, when stopping, for all threads to finish.
  if (slot.left == 0 || (stopping() && busy_ == 0)) progress_.notify_all();
  claimed.reset();
}

bool BatchRing::claim(std::optional<Claim>& claimed, std::vector<SampleFailure>& failures) {
  MutexLock lock(mutex_);
  report(claimed, failures);
  while (!ending_ && unclaimed() == 0) work_.wait(lock);
  if (ending_) return false;
  const size_t first = next_sample_ % batch_;
  const size_t count = std::min({most_, batch_ - first, unclaimed()});
  const size_t batch = next_sample_ / batch_;
  claimed = Claim{&slots_[batch % slots_.size()], batch, first, count, epoch_};
  next_sample_ += count;
  set_busy(busy_ + 1);
  if (unclaimed() > 0 && is_short()) work_.notify_one();
  return true;
}

void BatchRing::set_busy(size_t busy) {
  if (network_.counts()) network_.add(busy_, std::chrono::steady_clock::now());
  busy_ = busy;
}

void BatchRing::set_blocked(bool blocked) {
  const MutexLock lock(mutex_);
  network_.set_blocked(blocked, busy_, std::chrono::steady_clock::now());
}

std::chrono::nanoseconds BatchRing::network_wait() const {
  const MutexLock lock(mutex_);
  return network_.sum();
}

size_t BatchRing::unclaimed() const {
  const size_t opened = std::min(end_, opened_ * batch_);
  return opened - std::min(opened, next_sample_);
}

size_t BatchRing::finished() const {
  size_t batch = taken_;
  while (batch < opened_ && slots_[batch % slots_.size()].left == 0) ++batch;
  return batch - taken_;
}

void BatchRing::open_slots() {
  if (opened_ > taken_ && slots_.size() - (opened_ - taken_) < half()) return;
  const size_t batches = (end_ + batch_ - 1) / batch_;
  // An epoch may begin after this process's last batch, if others have one more.
  const size_t opened = std::max(opened_, std::min(batches, taken_ + slots_.size()));
  // Not under the lock: taking memory may allocate pinned memory. No thread uses these slots yet.
  for (size_t batch = opened_; batch < opened; ++batch) {
    BatchSlot& slot = slots_[batch % slots_.size()];
    const size_t first = batch * batch_, last = std::min(first + batch_, end_);
    slot.batch.samples.resize(last - first);
    for (size_t i = first; i < last; ++i) slot.batch.samples[i - first].index = order_[i];
    provide_memory_(slot);
    slot.failures.clear();
    slot.failures.reserve(last - first);  // reserve here, where running out of memory can be
                                          // reported
    slot.left = last - first;
  }
  bool wakes;
  {
    // All at once: a worker woken for the first of them could fall asleep before the last.
    const MutexLock lock(mutex_);
    opened_ = opened;
    wakes = unclaimed() > 0 && (busy_ == 0 || is_short());  // busy ones claim again by themselves
  }
  if (wakes) work_.notify_one();
}

void BatchRing::start(uint32_t epoch, std::vector<uint32_t> order, size_t first_batch, size_t end) {
  {
    const MutexLock lock(mutex_);
    stopping_ = false;
    epoch_ = epoch;
    order_ = std::move(order);
    end_ = end;
    taken_ = opened_ = first_batch;
    next_sample_ = first_batch * batch_;
  }
  open_slots();
}

bool BatchRing::wait(std::chrono::nanoseconds limit) {
  MutexLock lock(mutex_);
  if (taken_ == opened_) return true;
  const BatchSlot& slot = slots_[taken_ % slots_.size()];
  if (slot.left == 0) return true;
  if (unclaimed() > 0) work_.notify_all();
  const auto begin = std::chrono::steady_clock::now(), until = begin + limit;
  network_.set_consumer_waits(true, busy_, begin);
  while (slot.left > 0 && progress_.wait_until(lock, until)) {
  }
  network_.set_consumer_waits(false, busy_, std::chrono::steady_clock::now());
  return slot.left == 0;
}

BatchSlot* BatchRing::front() {
  const auto look =
      cancel_test() ? std::min<std::chrono::nanoseconds>(kConsumerLook, wait_limit_) : wait_limit_;
  for (auto waited = look; !wait(look); waited += look) {
    if (is_cancelled()) fail_cancelled("loader");
    if (waited >= wait_limit_) fail_waiting("no batch came");
  }
  // Only the consumer changes taken_.
  return taken_ == opened_ ? nullptr : &slots_[taken_ % slots_.size()];
}

void BatchRing::release() {
  {
    const MutexLock lock(mutex_);
    ++taken_;
  }
  open_slots();
}

void BatchRing::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  end_ = next_sample_ = 0;
  const auto until = std::chrono::steady_clock::now() + wait_limit_;
  while (busy_ > 0)
    if (!progress_.wait_until(lock, until) && busy_ > 0)
      fail_waiting("the loader's threads did not stop");
  taken_ = opened_ = 0;
  for (BatchSlot& slot : slots_) slot.batch.pixels.reset();
}

void BatchRing::shut_down() {
  {
    const MutexLock lock(mutex_);
    ending_ = stopping_ = true;
  }
  work_.notify_all();
}

size_t BatchRing::ready() const {
  const MutexLock lock(mutex_);
  return finished();
}

}  // namespace saturate
