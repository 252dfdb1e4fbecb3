// Scratch memory shared by threads.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace saturate {

// Holds as many objects as were ever used at once. Safe for concurrent use.
template <class T>
class ScratchPool {
 public:
  // A T as its last user left it, or a new one; returned when `Lent` is destroyed.
  class Lent {
   public:
    explicit Lent(ScratchPool& pool) : pool_(pool), object_(pool.take()) {}
    ~Lent() { pool_.give_back(std::move(object_)); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<T> object_;
  };

 private:
  std::unique_ptr<T> take() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return std::make_unique<T>();
    auto object = std::move(free_.back());
    free_.pop_back();
    return object;
  }
  void give_back(std::unique_ptr<T> object) {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(object));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<T>> free_ GUARDED_BY(mutex_);
};

}  // namespace saturate
