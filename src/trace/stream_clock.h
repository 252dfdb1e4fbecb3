// Measures how busy a device's streams are, without waiting for them: each piece of work is between
// two marks in its stream, which are read when the stream has passed them, some steps later.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "saturate/ledger.h"

namespace c10 {
struct Device;
}

namespace saturate {

// The name of the step's own stream.
inline constexpr const char* kStepStream = "step";

// The difference from `earlier` to `now`, which has all of its streams.
std::vector<StreamTime> time_between(const std::vector<StreamTime>& earlier,
                                     std::vector<StreamTime> now);

// A point in a stream's order that records when the stream reached it.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  // Places it after all work of the calling thread's current stream so far, discarding any earlier
  // position.
  virtual void place() = 0;
  virtual bool reached() const = 0;
  // REQUIRES: both are reached.
  virtual double seconds_since(const TimeMark& earlier) const = 0;
};

// A mark made of the device's own events, in the calling thread's current stream.
std::unique_ptr<TimeMark> make_device_mark(const c10::Device& device);

// Safe from any thread, but each stream's work must come from one thread at a time.
class StreamClock {
 public:
  explicit StreamClock(std::function<std::unique_ptr<TimeMark>()> make_mark)
      : make_mark_(std::move(make_mark)) {}

  // Work given to the calling thread's current stream until the scope ends counts for `stream`.
  // Scopes of a stream do not nest.
  class Work {
   public:
    // Does nothing without a clock.
    Work(StreamClock* clock, const std::string& stream);
    ~Work();

   private:
    StreamClock* const clock_;  // null: disabled
    const std::string stream_;
    std::unique_ptr<TimeMark> begin_;
  };

  // If disabled, work is not recorded: used to measure the recording's own cost.
  void set_enabled(bool enabled);

  // The time from now to each stream's next work is unknown: it does not count as idle.
  void skip_interval();

  // By name, up to the last marks passed.
  std::vector<StreamTime> times();

 private:
  struct Piece {
    std::unique_ptr<TimeMark> begin, end;
    bool follows;  // the time between it and the previous piece is idle
  };
  struct Track {
    StreamTime time;
    std::deque<Piece> unread;            // in stream order
    std::unique_ptr<TimeMark> read_end;  // of the last piece read
    bool goes_on = false;                // the next piece follows
  };
  std::unique_ptr<TimeMark> take_mark() NEEDS_LOCK(mutex_);
  void read(Track& track) NEEDS_LOCK(mutex_);

  const std::function<std::unique_ptr<TimeMark>()> make_mark_;
  std::atomic<bool> enabled_{true};
  Mutex mutex_;
  std::map<std::string, Track> tracks_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<TimeMark>> spare_ GUARDED_BY(mutex_);  // for reuse
};

// With device marks. Null for a CPU, which has no streams.
std::unique_ptr<StreamClock> make_stream_clock(const c10::Device& device);

}  // namespace saturate
