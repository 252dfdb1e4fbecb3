// The common output of all `saturate bench` commands.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "advise/gain.h"

namespace saturate {

class Env;

// A repeated measurement.
struct BenchRow {
  std::string name;
  std::string unit;             // of `values`
  std::vector<double> values;   // one per repetition
  nlohmann::ordered_json keys;  // additional keys of the JSON row, an object
};

struct BenchReport {
  std::string bench;  // "loader"
  std::vector<BenchRow> rows;
};

// Prints a table: median, minimum and maximum of each row.
void print_report(const BenchReport& report);
// {"bench", "host", "commit", "rows": [{"name", "unit", "median", "min", "max", "n", ...}]}.
void write_report(Env& env, const std::string& path, const BenchReport& report);

// Fails with kUsage in a debug build.
void require_release_build();

}  // namespace saturate
