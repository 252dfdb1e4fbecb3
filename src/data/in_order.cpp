#include "data/in_order.h"

#include "data/read_ahead.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// A failure is reported by the read that meets it.
void advise(const Dataset& data, ReadAdvice advice, size_t index) {
  try {
    data.advise(advice, index, 1);
  } catch (const Error&) {
  }
}

uint64_t bytes_of_sample(const Dataset& data, size_t index) {
  try {
    return data.bytes(index);
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

InOrder::InOrder(const Dataset& data) : data_(data), budget_(data.look_ahead()) {}

InOrder::~InOrder() {
  const MutexLock lock(mutex_);
  for (const auto& [index, bytes] : announced_) advise(data_, ReadAdvice::kNotAgain, index);
}

// Under the lock: a sample that is announced after its read has begun would be fetched twice.
void InOrder::before(size_t index) {
  if (budget_ == 0) return;
  const MutexLock lock(mutex_);
  while (next_ < data_.size() &&
         (next_ <= index || (bytes_ < budget_ && announced_.size() < kMostAnnounced))) {
    const uint64_t bytes = bytes_of_sample(data_, next_);
    advise(data_, ReadAdvice::kSoon, next_);
    announced_.emplace(next_++, bytes);
    bytes_ += bytes;
  }
  if (const auto read = announced_.extract(index)) bytes_ -= read.mapped();
}

}  // namespace saturate
