// A report: one HTML page that shows a run, or compares several, and needs nothing but itself.
#pragma once

#include <span>
#include <string>

#include "watch/run_reading.h"

namespace saturate {

// REQUIRES: at least one run or ladder.
std::string make_report(std::span<const RunReading> runs,
                        std::span<const LadderReading> ladders = {});

}  // namespace saturate
