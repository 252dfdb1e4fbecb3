// The common arguments of benchmarks of the input path.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"

namespace saturate {

class Env;

struct BenchInput {
  std::string input = {}, json = {};
  std::vector<std::string> overrides = {};
  std::vector<int> threads = {};
  int repeats;
  double seconds;  // minimum length of one measurement
};

// INPUT, --set, --threads, --repeats, --seconds and --json; `arguments` holds their defaults.
void add_bench_input(CLI::App& command, BenchInput& arguments);

// The named recipe, or ImageNet's usual augmentation for a source.
Recipe recipe_of(Env& env, const BenchInput& arguments);

}  // namespace saturate
