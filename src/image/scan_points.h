// Positions inside a scan at which decoding can begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate {

// The state before an MCU.
struct ScanPoint {
  uint64_t bit = 0;     // from the first byte of the scan's data, including stuffed bytes
  uint32_t dc[3] = {};  // predictors
  bool operator==(const ScanPoint&) const = default;
};

// Points before every `every`-th MCU of a row, in order. The last rows may be missing; then the
// first of them may have its first point.
struct ScanPoints {
  int every = 0, rows = 0, across = 0;  // across: points of a row
  std::vector<ScanPoint> point;
  // Rows all of whose points are known, with the end of the last.
  int known_rows() const {
    const size_t n = point.size();
    return across == 0                          ? 0
           : n == size_t(rows) * size_t(across) ? rows
                                                : int((n - (n > 0)) / size_t(across));
  }
};

}  // namespace saturate
