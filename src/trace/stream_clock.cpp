#include "trace/stream_clock.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace saturate {

std::vector<StreamTime> time_between(const std::vector<StreamTime>& earlier,
                                     std::vector<StreamTime> now) {
  for (StreamTime& time : now)
    for (const StreamTime& before : earlier)
      if (before.stream == time.stream) {
        time.busy_s -= before.busy_s;
        time.idle_s -= before.idle_s;
      }
  return now;
}

struct StreamClock::State {
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

  explicit State(std::function<std::unique_ptr<TimeMark>()> make_mark)
      : make(std::move(make_mark)) {}

  std::unique_ptr<TimeMark> take_mark() {
    if (spare.empty()) return make();
    auto mark = std::move(spare.back());
    spare.pop_back();
    return mark;
  }

  void read(Track& track) {
    while (!track.unread.empty() && track.unread.front().end->reached()) {
      Piece piece = std::move(track.unread.front());
      track.unread.pop_front();
      track.time.busy_s += piece.end->seconds_since(*piece.begin);
      if (track.read_end) {
        if (piece.follows)
          track.time.idle_s += std::max(0.0, piece.begin->seconds_since(*track.read_end));
        spare.push_back(std::move(track.read_end));
      }
      spare.push_back(std::move(piece.begin));
      track.read_end = std::move(piece.end);
    }
  }

  const std::function<std::unique_ptr<TimeMark>()> make;
  std::atomic<bool> enabled{true};
  std::mutex mutex;
  std::map<std::string, Track> tracks;           // guarded by mutex, as the next
  std::vector<std::unique_ptr<TimeMark>> spare;  // for reuse
};

StreamClock::StreamClock(std::function<std::unique_ptr<TimeMark>()> make_mark)
    : state_(std::make_unique<State>(std::move(make_mark))) {}
StreamClock::~StreamClock() = default;

StreamClock::Work::Work(StreamClock* clock, const std::string& stream)
    : clock_(clock && clock->state_->enabled ? clock : nullptr), stream_(clock_ ? stream : "") {
  if (!clock_) return;
  State& state = *clock_->state_;
  {
    std::lock_guard lock(state.mutex);
    // Read here too, so that marks are reused even if nobody asks for times.
    state.read(state.tracks[stream_]);
    begin_ = state.take_mark();
  }
  begin_->place();
}

// The work itself reports device errors; here they cost a measurement.
StreamClock::Work::~Work() {
  if (!clock_) return;
  State& state = *clock_->state_;
  std::lock_guard lock(state.mutex);
  State::Track& track = state.tracks[stream_];
  try {
    auto end = state.take_mark();
    end->place();
    track.unread.push_back({std::move(begin_), std::move(end), track.goes_on});
    track.goes_on = true;
  } catch (...) {
    track.goes_on = false;
  }
}

void StreamClock::set_enabled(bool enabled) {
  state_->enabled = enabled;
  leave_out();
}

void StreamClock::leave_out() {
  std::lock_guard lock(state_->mutex);
  for (auto& [name, track] : state_->tracks) track.goes_on = false;
}

std::vector<StreamTime> StreamClock::times() {
  std::lock_guard lock(state_->mutex);
  std::vector<StreamTime> times;
  for (auto& [name, track] : state_->tracks) {
    state_->read(track);
    track.time.stream = name;
    times.push_back(track.time);
  }
  return times;
}

}  // namespace saturate
