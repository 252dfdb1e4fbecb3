// Measures how busy a device's streams are, without waiting for them: each piece of work is between
// two marks in its stream, which are read when the stream has passed them, some steps later.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

// Safe from any thread, but each stream's work must come from one thread at a time.
class StreamClock {
 public:
  explicit StreamClock(std::function<std::unique_ptr<TimeMark>()> make_mark);
  ~StreamClock();

  // Work given to the calling thread's current stream until the scope ends counts for `stream`.
  // Scopes of a stream do not nest.
  class Work {
   public:
    // Does nothing without a clock.
    Work(StreamClock* clock, const std::string& stream);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    StreamClock* const clock_;  // null: disabled
    const std::string stream_;
    std::unique_ptr<TimeMark> begin_;
  };

  // If disabled, work is not recorded: used to measure the recording's own cost.
  void set_enabled(bool enabled);

  // The time from now to each stream's next work is unknown: it does not count as idle.
  void leave_out();

  // By name, up to the last marks passed.
  std::vector<StreamTime> times();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Uses the device's own events. Null for a CPU, which has no streams.
std::unique_ptr<StreamClock> make_stream_clock(const c10::Device& device);

}  // namespace saturate
