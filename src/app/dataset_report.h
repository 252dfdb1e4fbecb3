// The output of data inspect, data verify and data index.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/inspect.h"

namespace saturate {

// For --json.
nlohmann::ordered_json to_json(const std::vector<BrokenSample>& samples);
std::string to_json(const DatasetReport& report);

// One line for each broken sample.
void print_broken(const DatasetReport& report, const char* indent);
void print_report(const DatasetReport& report, const std::string& source);

}  // namespace saturate
