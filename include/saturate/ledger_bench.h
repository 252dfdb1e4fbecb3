// What the ledger itself costs: a recipe's own loop with it and without it, in turns.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "saturate/recipe.h"

namespace saturate {

struct LedgerBenchOptions {
  std::string folder;  // for the files of the run that is measured
  int rounds = 20;
  double seconds = 0.5;  // least length of each of a round's two measurements
  // Polled between steps; true gives up.
  std::function<bool()> should_stop = [] { return false; };
};

// Images a second, one a round each.
struct LedgerBench {
  Recipe recipe;  // as run: every "auto" resolved
  std::vector<double> on, off;
};

// Runs the trainer of `recipe` on one held batch, with a learning rate of 0. The order of the two
// is exchanged from round to round. Fails as training does. Empty where should_stop gave up.
std::optional<LedgerBench> bench_ledger(Env& env, const Recipe& recipe,
                                        const LedgerBenchOptions& options);

}  // namespace saturate
