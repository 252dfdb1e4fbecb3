// Streams of work and events between them: what CUDA calls so, and a twin of it for the CPU, so
// that a pipeline is written once and tested without a GPU.
//
// A stream does what it is given in order, and does not make the caller wait. An event is a point
// in a stream's order, for which another stream, or the caller, can wait. On a CUDA stream work is
// enqueued on the spot, by the caller's thread with the stream as the current one
// (src/feed/device_stream.h); a thread stream runs it on a thread of its own; the host's stream
// runs it at once.
//
// Streams belong to the thread that made them. With a checker they tell it what they do.
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
  // The calling thread waits; throws what the work before it threw.
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

  // Adds work. Once some has thrown, what follows is left out, and every event behind it throws the
  // same.
  virtual void submit(std::function<void()> work) = 0;
  // The point behind all that was submitted so far.
  std::shared_ptr<Event> record();
  // What is submitted from now on begins after the event. Of the host's stream the caller waits.
  void wait(const std::shared_ptr<Event>& event);
  // The calling thread waits for the event; throws what the work before it threw.
  void host_waits(const std::shared_ptr<Event>& event);
  // Whether all before the event is done, which the calling thread knows from then on; does not
  // wait.
  bool is_done(const std::shared_ptr<Event>& event);

  // What the work submitted next does to memory, for the checker; nothing without one.
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

// Runs its work on a thread of its own, named so in traces; the destructor finishes what has begun,
// leaves out the rest and joins. `begin`, where given, is called on that thread first.
std::unique_ptr<Stream> make_thread_stream(const std::string& name,
                                           StreamChecker* checker = nullptr,
                                           std::function<void()> begin = {});
// Runs its work at once on the calling thread.
std::unique_ptr<Stream> make_host_stream(const std::string& name, StreamChecker* checker = nullptr);

}  // namespace saturate
