// Time on the device by phase: marks in the order of the step's stream, one at each change of
// phase, which are read when the stream is past them, some steps later. Nobody waits for the
// device, and no memory is allocated after the constructor.
//
// A phase's time is what passed on the stream from its mark to the next one: its work, and what the
// stream lay idle in between, so that the phases sum to no more than wall time. What runs on
// streams of its own (copies, augmentation) shows only where the step waits for it, in kWait.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "saturate/ledger.h"
#include "saturate/stream_clock.h"

namespace saturate {

// Belongs to the ledger's thread.
class DevicePhases {
 public:
  // Marks that can be ahead of the device at once: the phases of some forty steps.
  static constexpr size_t kMarks = 256;

  // Makes `marks` of them, at least 2, and places each once, so that a device makes here what it
  // makes for them.
  explicit DevicePhases(const std::function<std::unique_ptr<TimeMark>()>& make_mark,
                        size_t marks = kMarks);
  ~DevicePhases();

  // What the current stream is given from now on belongs to `phase`. kOther is not one: what comes
  // between two phases counts with the first, so that leaving one for the next takes one mark.
  // Where the device is so far behind that no mark is free, the time up to the next is left out. A
  // mark that fails ends the measuring, not the run: what has failed is told by the work itself.
  void enter(Phase phase) noexcept;

  // The time from now to the next enter() is not counted.
  void leave_out() noexcept;

  // Everything counted so far, up to the last mark that the stream is past. kOther has none.
  PhaseTimes times() noexcept;

 private:
  // Of the time from its mark to the next slot's.
  struct Slot {
    std::unique_ptr<TimeMark> mark;
    Phase phase = Phase::kOther;
    bool counts = false;
  };

  Slot& slot(size_t i) { return ring_[(oldest_ + i) % ring_.size()]; }
  void place(Phase phase);
  // Counts the oldest `spans`, which the stream is past.
  void take(size_t spans);

  std::vector<Slot> ring_;
  size_t oldest_ = 0, placed_ = 0;  // slots in use: `placed_`, from `oldest_` on
  std::optional<Phase> current_;    // of the last mark, unless its time is left out
  bool failed_ = false;
  PhaseTimes times_;
};

// Over the device's own events. Null for a CPU.
std::unique_ptr<DevicePhases> make_device_phases(const c10::Device& device);

}  // namespace saturate
