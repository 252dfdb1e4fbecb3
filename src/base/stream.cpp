#include "saturate/data/stream.h"

#include <pthread.h>

#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace saturate {

Stream::Stream(std::string name, StreamChecker* checker)
    : name_(std::move(name)), checker_(checker) {
  if (checker_) id_ = checker_->add_stream(name_);
}

std::shared_ptr<Event> Stream::record() {
  auto event = do_record();
  if (checker_) event->mark_ = checker_->marks(id_);
  return event;
}

void Stream::wait(const std::shared_ptr<Event>& event) {
  if (checker_) checker_->waits(id_, event->mark_);
  do_wait(event);
}

void Stream::host_waits(const std::shared_ptr<Event>& event) {
  event->block();
  if (checker_) checker_->waits(StreamChecker::kHost, event->mark_);
}

bool Stream::is_done(const std::shared_ptr<Event>& event) {
  if (!event->done()) return false;
  if (checker_) checker_->waits(StreamChecker::kHost, event->mark_);
  return true;
}

Stream::Buffer Stream::makes(const char* name, const Place& place) {
  return checker_ ? checker_->makes(id_, name, place) : Buffer();
}
Stream::Buffer Stream::host_memory(const char* name, bool pinned, const Place& place) {
  return checker_ ? checker_->host_memory(name, pinned, place) : Buffer();
}
void Stream::reads(Buffer buffer, const Place& place) {
  if (checker_) checker_->reads(id_, buffer, place);
}
void Stream::writes(Buffer buffer, const Place& place) {
  if (checker_) checker_->writes(id_, buffer, place);
}
void Stream::copies_async(Buffer from, Buffer to, const Place& place) {
  if (checker_) checker_->copies_async(id_, from, to, place);
}
void Stream::keeps(Buffer buffer, const Place& place) {
  if (checker_) checker_->keeps(id_, buffer, place);
}
void Stream::frees(Buffer buffer, const Place& place) {
  if (checker_) checker_->frees(buffer, place);
}

namespace {

// Set by one thread, waited for by others.
class Flag : public Event {
 public:
  void reach(std::exception_ptr failure) {
    {
      MutexLock lock(mutex_);
      reached_ = true;
      failure_ = std::move(failure);
    }
    changed_.notify_all();
  }
  bool done() const override {
    MutexLock lock(mutex_);
    return reached_;
  }

 protected:
  void block() const override {
    MutexLock lock(mutex_);
    while (!reached_) changed_.wait(lock);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  mutable Mutex mutex_;
  mutable Condition changed_;
  bool reached_ GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ GUARDED_BY(mutex_);
};

class ThreadStream : public Stream {
 public:
  ThreadStream(const std::string& name, StreamChecker* checker, std::function<void()> begin)
      : Stream(name, checker), thread_([this, begin = std::move(begin)] { run(begin); }) {}
  ~ThreadStream() override {
    {
      MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(std::function<void()> work) override { push({std::move(work), nullptr}); }

 protected:
  std::shared_ptr<Event> do_record() override {
    auto flag = std::make_shared<Flag>();
    push({{}, flag});
    return flag;
  }
  void do_wait(const std::shared_ptr<Event>& event) override {
    push({[event] { block(*event); }, nullptr});
  }

 private:
  struct Task {
    std::function<void()> work;  // empty: set the flag
    std::shared_ptr<Flag> flag;
  };

  void push(Task task) {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  // It may drop work at the end, but must set every flag, which another stream may wait for.
  void run(const std::function<void()>& begin) {
    pthread_setname_np(pthread_self(), name().substr(0, 15).c_str());
    std::exception_ptr failure;
    try {
      if (begin) begin();
    } catch (...) {
      failure = std::current_exception();
    }
    for (Task task; take(task); task = {}) {
      if (task.flag) {
        task.flag->reach(failure);
      } else if (!failure && !ending()) {
        try {
          task.work();
        } catch (...) {
          failure = std::current_exception();
        }
      }
    }
  }

  bool ending() {
    MutexLock lock(mutex_);
    return ending_;
  }
  bool take(Task& task) {
    MutexLock lock(mutex_);
    while (!ending_ && tasks_.empty()) changed_.wait(lock);
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
    return true;
  }

  Mutex mutex_;
  Condition changed_;
  std::deque<Task> tasks_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

class HostStream : public Stream {
 public:
  using Stream::Stream;
  void submit(std::function<void()> work) override { work(); }

 protected:
  std::shared_ptr<Event> do_record() override {
    auto flag = std::make_shared<Flag>();
    flag->reach(nullptr);
    return flag;
  }
  void do_wait(const std::shared_ptr<Event>& event) override { block(*event); }
};

}  // namespace

std::unique_ptr<Stream> make_thread_stream(const std::string& name, StreamChecker* checker,
                                           std::function<void()> begin) {
  return std::make_unique<ThreadStream>(name, checker, std::move(begin));
}

std::unique_ptr<Stream> make_host_stream(const std::string& name, StreamChecker* checker) {
  return std::make_unique<HostStream>(name, checker);
}

}  // namespace saturate
