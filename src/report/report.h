// A report: one self-contained HTML page that shows a run or compares several.
#pragma once

#include <span>
#include <string>

#include "report/run_reading.h"

namespace saturate {

// REQUIRES: at least one run or ladder.
std::string make_report(std::span<const RunReading> runs,
                        std::span<const LadderReading> ladders = {});

}  // namespace saturate
