#include "trace/stream_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace saturate {
namespace {

// Through c10's event interface, which is the same for all device types: compiles without CUDA.
class DeviceMark : public TimeMark {
 public:
  explicit DeviceMark(const c10::Device& device)
      : device_(device), event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}

  void place() override {
    event_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  bool reached() const override { return event_.query(); }
  double seconds_since(const TimeMark& earlier) const override {
    return static_cast<const DeviceMark&>(earlier).event_.elapsedTime(event_) * 1e-3;
  }

 private:
  const c10::Device device_;
  c10::Event event_;  // with timing enabled
};

}  // namespace

std::unique_ptr<TimeMark> make_device_mark(const c10::Device& device) {
  return std::make_unique<DeviceMark>(device);
}

std::unique_ptr<StreamClock> make_stream_clock(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<StreamClock>([device] { return make_device_mark(device); });
}

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

std::unique_ptr<TimeMark> StreamClock::take_mark() {
  if (spare_.empty()) return make_mark_();
  auto mark = std::move(spare_.back());
  spare_.pop_back();
  return mark;
}

void StreamClock::read(Track& track) {
  while (!track.unread.empty() && track.unread.front().end->reached()) {
    Piece piece = std::move(track.unread.front());
    track.unread.pop_front();
    track.time.busy_s += piece.end->seconds_since(*piece.begin);
    if (track.read_end) {
      if (piece.follows)
        track.time.idle_s += std::max(0.0, piece.begin->seconds_since(*track.read_end));
      spare_.push_back(std::move(track.read_end));
    }
    spare_.push_back(std::move(piece.begin));
    track.read_end = std::move(piece.end);
  }
}

StreamClock::Work::Work(StreamClock* clock, const std::string& stream)
    : clock_(clock && clock->enabled_ ? clock : nullptr), stream_(clock_ ? stream : "") {
  if (!clock_) return;
  {
    const MutexLock lock(clock_->mutex_);
    // Read here too, so that marks are reused even if nobody asks for times.
    clock_->read(clock_->tracks_[stream_]);
    begin_ = clock_->take_mark();
  }
  begin_->place();
}

// The work itself reports device errors; here they cost a measurement.
StreamClock::Work::~Work() {
  if (!clock_) return;
  const MutexLock lock(clock_->mutex_);
  Track& track = clock_->tracks_[stream_];
  try {
    auto end = clock_->take_mark();
    end->place();
    track.unread.push_back({std::move(begin_), std::move(end), track.goes_on});
    track.goes_on = true;
  } catch (...) {
    track.goes_on = false;
  }
}

void StreamClock::set_enabled(bool enabled) {
  enabled_ = enabled;
  skip_interval();
}

void StreamClock::skip_interval() {
  const MutexLock lock(mutex_);
  for (auto& [name, track] : tracks_) track.goes_on = false;
}

std::vector<StreamTime> StreamClock::times() {
  const MutexLock lock(mutex_);
  std::vector<StreamTime> times;
  for (auto& [name, track] : tracks_) {
    read(track);
    track.time.stream = name;
    times.push_back(track.time);
  }
  return times;
}

}  // namespace saturate
