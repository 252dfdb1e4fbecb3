// The JSON document that a report's page is built from.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "report/run_reading.h"

namespace saturate {

// {"phases", "options", "defaults", "runs", "ladders"}: figures and texts as the files have them,
// neither rounded nor escaped. Unknown values are null. Runs are named by the last part of their
// folders, or by whole paths if two are equal.
nlohmann::ordered_json report_data(std::span<const RunReading> runs,
                                   std::span<const LadderReading> ladders);

}  // namespace saturate
