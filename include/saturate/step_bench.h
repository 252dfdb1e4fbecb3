// What a recipe's step costs: the training loop itself, next to a bare LibTorch loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "saturate/ledger.h"
#include "saturate/recipe.h"

namespace saturate {

struct StepBenchOptions {
  std::string folder;  // for the files of the run that is measured
  int rounds = 5;
  double seconds = 1;    // least length of each of a round's four measurements
  bool profile = false;  // find out the share of oneDNN and MKL too
  // Polled between steps; true gives up.
  std::function<bool()> should_stop = [] { return false; };
};

// Some steps, without those that the loop needed to get going.
struct StepTiming {
  int64_t steps = 0, samples = 0;
  double wall_s = 0, cpu_s = 0;
  PhaseTimes phases;  // sums to wall_s; the bare loop has none
  double images_per_s() const { return double(samples) / wall_s; }
  // Of a step of `batch` images.
  double s_per_step(int batch) const { return wall_s / double(samples) * batch; }
};

// Time within the libraries that compute, as they print it themselves.
struct LibraryTimes {
  double onednn_s = 0, mkl_s = 0;
  std::map<std::string, double> kinds;  // seconds by what was called, such as "convolution"
};

// Reads what ONEDNN_VERBOSE=profile_exec and MKL_VERBOSE=1 print; other lines are passed over.
LibraryTimes parse_library_times(const std::string& text);

struct StepBench {
  Recipe recipe;  // as run: every "auto" resolved
  // One a round each, taking turns: the recipe's own loop; the loader alone, whose batches no step
  // sees; the loop on one batch, with the loader at rest; and the bare loop on that batch.
  std::vector<StepTiming> whole, input, held, bare;
  int64_t memory_peak_bytes = 0;  // of the recipe's own loop
  // A step on the held batch, where asked for.
  std::optional<LibraryTimes> libraries;
};

// Runs the trainer of `recipe` (its loader, step, metrics and records, but neither evaluation nor
// checkpoints) with a learning rate of 0, so that weights stay as they are and no round meets other
// numbers than the one before. Fails as training does. Empty where should_stop gave up.
std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options);

}  // namespace saturate
