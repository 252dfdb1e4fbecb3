// SPDX-License-Identifier: BSD-3-Clause
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

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace saturate {

using Place = std::source_location;

// Finds errors in the use of streams, even if harmless in this run: the checker is told, in enqueue
// order, which stream makes, reads, writes and frees which memory, and which stream waits for
// which. Vector clocks (Mattern, "Virtual Time and Global States of Distributed Systems", 1989)
// determine what is guaranteed to precede what.
//
// Errors, each reported with the program line that caused it:
//   - a missing wait: memory is used that another stream may not have written yet, or may still
//     read;
//   - a wrong record_stream: it names the stream that made the memory, or the memory is freed while
//     a stream that was never named may still use it, so that the allocator reuses it too early;
//   - a copy called async from memory that is not pinned, which waits for the device after all.
//
// The rules are those of a GPU and of its CPU equivalent, where most such errors are harmless:
// so pipeline tests need no GPU.
//
// Belongs to the thread that enqueues. Every method that finds an error fails with kRun: the error,
// and FILE:LINE of `place`, which is also Error::thrown_at().
class StreamChecker {
 public:
  using Id = int;  // stream number; kHost is the enqueuing thread itself
  static constexpr Id kHost = 0;
  struct Buffer {
    int64_t id = -1;
  };
  struct Mark {  // state of the clocks at an event
    std::vector<int64_t> clock;
  };

  StreamChecker();
  Id add_stream(std::string name);

  // The stream's allocator returns memory, which the stream then writes.
  Buffer makes(Id stream, std::string name, const Place& place);
  // Host memory, written by the host; pinned or not.
  Buffer host_memory(std::string name, bool pinned, const Place& place);
  void reads(Id stream, Buffer buffer, const Place& place);
  void writes(Id stream, Buffer buffer, const Place& place);
  // An asynchronous copy: reads `from`, writes `to`.
  void copies_async(Id stream, Buffer from, Buffer to, const Place& place);
  // record_stream: the memory stays valid for work that `stream` has enqueued when it is freed.
  void keeps(Id stream, Buffer buffer, const Place& place);
  // The last owner frees the memory.
  void frees(Buffer buffer, const Place& place);

  Mark marks(Id stream);
  void waits(Id stream, const Mark& mark);

 private:
  struct Use {
    int64_t tick = 0;
    Place place;
  };
  struct Known {
    std::string name;
    Id maker;
    bool pinned;
    Id writer;
    Use written;
    std::map<Id, Use> read;  // each stream's last read since the last write
    std::vector<Id> kept;
  };

  bool knows(Id stream, Id other, const Use& use) const;
  int64_t tick(Id stream);
  Known& known(Buffer buffer, const Place& place);
  void require_written(Id stream, const Known& memory, const char* verb, const Place& place) const;

  std::vector<std::string> names_;            // by stream
  std::vector<std::vector<int64_t>> clocks_;  // [stream][other]: known-completed work of the other
  std::map<int64_t, Known> memory_;
  int64_t next_ = 0;
};

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
