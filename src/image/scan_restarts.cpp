// Reads scans with restarts: each marker is a position at which decoding can begin.
#include <algorithm>
#include <cstring>

#include "image/baseline_scan.h"

namespace saturate {

// Where the data between two restarts begin; null if a marker before them is missing or out of
// order.
const uint8_t* BaselineScan::interval(int64_t number) {
  const uint8_t* const end = scan_.data() + scan_.size();
  while (intervals_.size() <= size_t(number)) {
    const uint8_t* at = intervals_.back();
    while (true) {
      at = static_cast<const uint8_t*>(std::memchr(at, 0xff, size_t(end - at)));
      if (!at || end - at < 2) return nullptr;
      if (at[1] != 0) break;
      at += 2;
    }
    while (end - at > 2 && at[1] == 0xff) ++at;  // fill bytes
    if (at[1] != JPEG_RST0 + int((intervals_.size() - 1) % 8)) return nullptr;
    intervals_.push_back(at + 2);
  }
  return intervals_[size_t(number)];
}

bool BaselineScan::enter_interval(Lane& lane, int64_t number) {
  const uint8_t* const from = interval(number);
  if (!from || lane.bits.overrun()) return false;
  unstuff(lane, from, scan_.data() + scan_.size());
  std::fill(std::begin(lane.dc), std::end(lane.dc), 0);
  return true;
}

// Goes to an MCU of the scan, from the last restart before it or from where the lane is. If a
// restart is right before it, the lane's next read enters it.
bool BaselineScan::seek(Lane& lane, int64_t scan_mcu) {
  const int64_t restart = scan_mcu - scan_mcu % restart_;
  if (lane.scan_mcu < restart || lane.scan_mcu > scan_mcu) {
    lane.bits = {};
    lane.scan_mcu = restart;
  }
  const int64_t count = scan_mcu - lane.scan_mcu;
  if (count == 0) return true;
  if (lane.scan_mcu == restart && !enter_interval(lane, restart / restart_)) return false;
  return parse(lane, int(count));
}

// Reads the columns of a row. Two lanes share it if there is a restart inside.
bool BaselineScan::read_intervals() {
  const int64_t row = int64_t{row_} * mcus_;
  const int64_t from = row + columns_.first, to = row + columns_.end;
  const int64_t middle = (from + to + restart_) / 2 / restart_ * restart_;
  const bool two = from < middle && middle < to;
  Lane &a = lane_[latest_], &b = lane_[1 - latest_];
  if (!seek(a, from) || (two && !seek(b, middle))) return false;
  a.mcu = columns_.first;
  a.end = two ? int(middle - row) : columns_.end;
  b.mcu = a.end;
  b.end = columns_.end;
  if (!read_lanes(a, two ? &b : nullptr)) return false;
  a.scan_mcu = row + a.end;
  if (!two) return !a.bits.overrun();
  b.scan_mcu = to;
  latest_ = 1 - latest_;
  return !a.bits.overrun() && !b.bits.overrun();
}

}  // namespace saturate
