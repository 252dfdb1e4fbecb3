#include "data/ordered.h"

#include <utility>

namespace saturate {

std::optional<size_t> OrderedWindow::claim() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return stopped_ || next_ == count_ || next_ - taken_ < done_.size(); });
  if (stopped_ || next_ == count_) return std::nullopt;
  return next_++;
}

void OrderedWindow::finish(size_t item, std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    done_[item % done_.size()] = {true, std::move(error)};
  }
  progress_.notify_one();
}

void OrderedWindow::wait() {
  std::unique_lock lock(mutex_);
  State& oldest = done_[taken_ % done_.size()];
  progress_.wait(lock, [&] { return oldest.done; });
  if (oldest.error) std::rethrow_exception(oldest.error);
}

void OrderedWindow::release() {
  {
    std::lock_guard lock(mutex_);
    done_[taken_ % done_.size()] = {};
    ++taken_;
  }
  room_.notify_all();
}

void OrderedWindow::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  room_.notify_all();
}

}  // namespace saturate
