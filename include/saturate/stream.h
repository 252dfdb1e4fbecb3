// Streams of work and events between them: CUDA's, and an equivalent for the CPU, so that a
// pipeline is written once and tested without a GPU.
//
// A stream runs its work in order without blocking the caller. An event is a point in a stream's
// order, for which another stream, or the caller, can wait. On a CUDA stream work is enqueued at
// once, by the caller's thread with the stream as the current one (src/feed/device_stream.h); a
// thread stream runs it on its own thread; the host's stream runs it at once.
//
// Streams belong to the thread that made them. They report their actions to a checker, if any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "saturate/stream_checker.h"

namespace saturate {

// A point in a stream's order.
class Event {
 public:
  virtual ~Event() = default;
  // Whether all before it is done.
  virtual bool done() const = 0;

 protected:
  friend class Stream;
  // Blocks the calling thread; rethrows errors of the work before it.
  virtual void block() const = 0;
  StreamChecker::Mark mark_;
};

class Stream {
 public:
  // `checker` may be null; else it must outlive the stream.
  Stream(std::string name, StreamChecker* checker);
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::string& name() const { return name_; }

  // Adds work. After an error, later work is dropped, and every later event throws the same error.
  virtual void submit(std::function<void()> work) = 0;
  // The point after all work submitted so far.
  std::shared_ptr<Event> record();
  // Work submitted from now on begins after the event. On the host's stream the caller blocks.
  void wait(const std::shared_ptr<Event>& event);
  // Blocks the calling thread until the event; rethrows errors of the work before it.
  void host_waits(const std::shared_ptr<Event>& event);
  // Whether all work before the event is done, which the calling thread then knows; does not block.
  bool is_done(const std::shared_ptr<Event>& event);

  // Reports memory use of the next work to the checker; does nothing without one.
  using Buffer = StreamChecker::Buffer;
  Buffer makes(const char* name, const Place& place = Place::current());
  Buffer host_memory(const char* name, bool pinned, const Place& place = Place::current());
  void reads(Buffer buffer, const Place& place = Place::current());
  void writes(Buffer buffer, const Place& place = Place::current());
  void copies_async(Buffer from, Buffer to, const Place& place = Place::current());
  void keeps(Buffer buffer, const Place& place = Place::current());
  void frees(Buffer buffer, const Place& place = Place::current());

 protected:
  virtual std::shared_ptr<Event> do_record() = 0;
  virtual void do_wait(const std::shared_ptr<Event>& event) = 0;
  static void block(const Event& event) { event.block(); }

 private:
  const std::string name_;
  StreamChecker* const checker_;
  StreamChecker::Id id_ = StreamChecker::kHost;
};

// Runs its work on its own thread, which has this name in traces; the destructor finishes started
// work, drops the rest and joins. `begin`, if given, is called on that thread first.
std::unique_ptr<Stream> make_thread_stream(const std::string& name,
                                           StreamChecker* checker = nullptr,
                                           std::function<void()> begin = {});
// Runs its work at once on the calling thread.
std::unique_ptr<Stream> make_host_stream(const std::string& name, StreamChecker* checker = nullptr);

}  // namespace saturate
