// How busy a device's streams are, without waiting for any of them: each piece of work lies between
// two marks in its stream's order, which are read when the stream is past them, some steps later.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
struct Device;
}

namespace saturate {

// What the step's own stream is called.
inline constexpr const char* kStepStream = "step";

struct StreamTime {
  std::string stream;
  double busy_s = 0;  // from the begin to the end of each piece of work
  double idle_s = 0;  // from the end of one to the begin of the next
};

// What came to `earlier` to make `now` of it, which has all of its streams.
std::vector<StreamTime> time_between(const std::vector<StreamTime>& earlier,
                                     std::vector<StreamTime> now);

// A point in a stream's order that keeps the time at which the stream got there.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  // Puts it behind all that the calling thread's current stream was given so far, wherever it was
  // before.
  virtual void place() = 0;
  virtual bool reached() const = 0;
  // REQUIRES: both are reached.
  virtual double seconds_since(const TimeMark& earlier) const = 0;
};

// Safe from any thread, but that one stream's work is given by one thread at a time.
class StreamClock {
 public:
  explicit StreamClock(std::function<std::unique_ptr<TimeMark>()> make_mark);
  ~StreamClock();

  // What the calling thread's current stream is given until the scope ends is work of `stream`.
  // Scopes of a stream do not nest.
  class Work {
   public:
    // Without a clock nothing is noted.
    Work(StreamClock* clock, const std::string& stream);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    StreamClock* const clock_;  // null: nothing is noted
    const std::string stream_;
    std::unique_ptr<TimeMark> begin_;
  };

  // Off, work is not noted: what noting it costs is measured so.
  void set_enabled(bool enabled);

  // Of what the streams do from now to their next work nothing is known: it is not called idle.
  void leave_out();

  // As far as the streams have got, by name.
  std::vector<StreamTime> times();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Over the device's own events. Null for a CPU, which has no streams.
std::unique_ptr<StreamClock> make_stream_clock(const c10::Device& device);

}  // namespace saturate
