// The common arguments and output of `saturate bench` commands.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "advise/gain.h"
#include "saturate/data/recipe.h"

namespace saturate {

class Env;

// The arguments of benchmarks of the input path.
struct BenchInput {
  std::string input = {}, json = {};
  std::vector<std::string> overrides = {};
  std::vector<int> threads = {};
  int repeats = 1;
  double seconds = 1;  // minimum length of one measurement
  bool pack = false;   // bench loader: also packs
  int cached = 1024;   // bench loader: samples that stand for a source kept in memory
};

// INPUT, --set, --threads, --repeats, --seconds and --json; `arguments` holds their defaults.
void add_bench_input(CLI::App& command, BenchInput& arguments);

// The named recipe, or ImageNet's usual augmentation for a source.
Recipe recipe_of(Env& env, const BenchInput& arguments);

// --json, for publish(); fails at once if the file cannot be written.
void add_json_option(CLI::App& command, std::string& path);

// A repeated measurement.
struct BenchRow {
  std::string name;
  std::string unit;            // of `values`
  std::vector<double> values;  // one per repetition
  // Additional keys of the JSON row.
  nlohmann::ordered_json keys = nlohmann::ordered_json::object();
};

struct BenchReport {
  std::string bench;  // "loader"
  std::vector<BenchRow> rows;
};

// Prints a table: median, minimum and maximum of each row.
void print_report(const BenchReport& report);
// Writes {"bench", "host", "commit", "rows": [{"name", "unit", "median", "min", "max", "n", ...}]},
// unless the path is empty; then calls print(). Returns an exit code.
int publish(const BenchReport& report, const std::string& json_path,
            const std::function<void(const BenchReport&)>& print = print_report);

// Fails with kUsage in a debug build.
void require_release_build();

}  // namespace saturate
