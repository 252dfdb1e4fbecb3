// Device time by phase: a mark on the step's stream at each change of phase, read when the stream
// has passed it, some steps later. Never waits for the device, and allocates only in the
// constructor.
//
// A phase's time is the stream's time from its mark to the next one: its work and idle time, so the
// phases sum to at most the wall time. Work on other streams (copies, augmentation) shows only when
// the step waits for it, in kWait.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "saturate/ledger.h"
#include "trace/stream_clock.h"

namespace saturate {

// Belongs to the ledger's thread.
class DevicePhases {
 public:
  // Maximum marks ahead of the device: the phases of some forty steps.
  static constexpr size_t kMarks = 256;

  // Creates `marks` of them, at least 2, and places each once, so that the device allocates their
  // resources now.
  explicit DevicePhases(const std::function<std::unique_ptr<TimeMark>()>& make_mark,
                        size_t marks = kMarks);

  // Assigns the current stream's work from now on to `phase`. kOther is ignored: time between two
  // phases counts for the first, so that a change takes one mark. If the device is so far behind
  // that no mark is free, the time up to the next is not counted. An error of a mark ends the
  // measurement, not the run: the work itself will report it.
  void enter(Phase phase) noexcept;

  // Does not count the time from now to the next enter().
  void skip_interval() noexcept;

  // All time counted so far, up to the last mark that the stream has passed. kOther has none.
  PhaseTimes times() noexcept;

 private:
  // The interval from its mark to the next slot's.
  struct Slot {
    std::unique_ptr<TimeMark> mark;
    Phase phase = Phase::kOther;
    bool counts = false;
  };

  Slot& slot(size_t i) { return ring_[(oldest_ + i) % ring_.size()]; }
  void place(Phase phase);
  // Counts the oldest `spans`, which the stream has passed.
  void take(size_t spans);

  std::vector<Slot> ring_;
  size_t oldest_ = 0, placed_ = 0;  // slots in use: `placed_` from `oldest_` on
  std::optional<Phase> current_;    // of the last mark, unless its time is not counted
  bool failed_ = false;
  PhaseTimes times_;
};

// With device marks. Null for a CPU.
std::unique_ptr<DevicePhases> make_device_phases(const c10::Device& device);

}  // namespace saturate
