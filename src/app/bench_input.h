// The arguments that benches of the input path have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "saturate/recipe.h"

namespace saturate {

class Env;

struct BenchInput {
  std::string input = {}, json = {};
  std::vector<std::string> overrides = {};
  std::vector<int> threads = {};
  int repeats;
  double seconds;  // least length of one measurement
};

// INPUT, --set, --threads, --repeats, --seconds and --json; what `arguments` holds are defaults.
void add_bench_input(CLI::App& command, BenchInput& arguments);

// The recipe of that name, or ImageNet's usual augmentation for a source.
Recipe recipe_of(Env& env, const BenchInput& arguments);

}  // namespace saturate
