// Field-by-field mean of readings.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "saturate/observer.h"

namespace saturate {

// Each field's mean is over the readings that have it.
class TelemetryMean {
 public:
  void add(const Telemetry& reading) {
    const auto fields = telemetry_fields();
    for (size_t i = 0; i < fields.size(); ++i)
      if (const auto& value = reading.*fields[i].member) {
        sums_[i] += *value;
        ++counts_[i];
      }
    if (!reading.throttle_reasons.empty()) reasons_.insert(reading.throttle_reasons);
  }

  Telemetry mean() const {
    Telemetry mean;
    const auto fields = telemetry_fields();
    for (size_t i = 0; i < fields.size(); ++i)
      if (counts_[i] > 0) mean.*fields[i].member = sums_[i] / double(counts_[i]);
    for (const auto& reason : reasons_)
      mean.throttle_reasons += (mean.throttle_reasons.empty() ? "" : "; ") + reason;
    return mean;
  }

 private:
  static constexpr size_t kMostFields = 32;
  std::array<double, kMostFields> sums_{};
  std::array<int64_t, kMostFields> counts_{};
  std::set<std::string> reasons_;
};

}  // namespace saturate
