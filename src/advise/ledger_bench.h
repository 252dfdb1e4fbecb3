// The ledger's cost: a recipe's own loop with and without it, interleaved.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"

namespace saturate {

struct LedgerBenchOptions {
  std::string folder;  // for the files of the measured run
  int rounds = 20;
  double seconds = 0.5;  // minimum length of each of a round's two measurements
  // Polled between steps; true cancels.
  std::function<bool()> should_stop = [] { return false; };
};

// Images per second, one value per round.
struct LedgerBench {
  Recipe recipe;  // as run: every "auto" resolved
  std::vector<double> on, off;
};

// Runs the trainer of `recipe` on one held batch, with a learning rate of 0. The order of the two
// alternates between rounds. Fails as training does. Empty if should_stop cancelled.
std::optional<LedgerBench> bench_ledger(Env& env, const Recipe& recipe,
                                        const LedgerBenchOptions& options);

}  // namespace saturate
