#include "data/ordered.h"

#include <utility>

namespace saturate {

std::optional<size_t> OrderedWindow::claim() {
  MutexLock lock(mutex_);
  while (!stopped_ && next_ < count_ && next_ - taken_ >= done_.size()) room_.wait(lock);
  if (stopped_ || next_ == count_) return std::nullopt;
  return next_++;
}

void OrderedWindow::finish(size_t item, std::exception_ptr error) {
  {
    const MutexLock lock(mutex_);
    done_[item % done_.size()] = {true, std::move(error)};
  }
  progress_.notify_one();
}

void OrderedWindow::wait() {
  MutexLock lock(mutex_);
  const State& oldest = done_[taken_ % done_.size()];
  while (!oldest.done) progress_.wait(lock);
  if (oldest.error) std::rethrow_exception(oldest.error);
}

void OrderedWindow::release() {
  {
    const MutexLock lock(mutex_);
    done_[taken_ % done_.size()] = {};
    ++taken_;
  }
  room_.notify_all();
}

void OrderedWindow::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  room_.notify_all();
}

}  // namespace saturate
