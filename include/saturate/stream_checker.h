// Finds errors in the use of streams, even if harmless in this run: the checker is told, in enqueue
// order, which stream makes, reads, writes and frees which memory, and which stream waits for
// which. Vector clocks (Mattern, "Virtual Time and Global States of Distributed Systems", 1989)
// determine what is guaranteed to precede what.
//
// Errors, each reported with the program line that caused it:
//   - a missing wait: memory is used that another stream may not have written yet, or may still
//   read;
//   - a wrong record_stream: it names the stream that made the memory, or the memory is freed while
//   a stream
//     that was never named may still use it, so that the allocator gives it away too early;
//   - a copy called async from memory that is not pinned, which waits for the device after all.
//
// The rules are a GPU's and of its CPU equivalent (stream.h), where most such errors are harmless:
// so pipeline tests need no GPU.
#pragma once

#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <vector>

namespace saturate {

using Place = std::source_location;

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

}  // namespace saturate
