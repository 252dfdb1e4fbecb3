// The cost of a recipe's step: the training loop itself, compared with a bare LibTorch loop, and
// with and without the ledger.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "advise/gain.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"

namespace saturate {

struct StepBenchOptions {
  std::string folder = {};  // for the files of the measured run
  int rounds = 5;
  double seconds = 1;    // minimum length of each of a round's measurements
  bool profile = false;  // also measure the share of oneDNN and MKL
  // Polled between steps; true cancels.
  std::function<bool()> should_stop = [] { return false; };
};

// Timing of some steps, without warm-up.
struct StepTiming {
  int64_t steps = 0, samples = 0;
  double wall_s = 0, cpu_s = 0;
  PhaseTimes phases;  // sums to wall_s; none for the bare loop
  void add(const StepTiming& other);
  double images_per_s() const { return double(samples) / wall_s; }
  double cores_used() const { return cpu_s / wall_s; }
  // Time of a step of `batch` images.
  double s_per_step(int batch) const { return wall_s / double(samples) * batch; }
};

// Each divided by a number.
PhaseTimes divided(PhaseTimes times, double by);
StepTiming sum_of(std::span<const StepTiming> timings);
// images/s of each.
std::vector<double> rates_of(std::span<const StepTiming> timings);

// Time within the compute libraries, as printed by them.
struct LibraryTimes {
  double onednn_s = 0, mkl_s = 0;
  std::map<std::string, double> kinds;  // seconds by operation, such as "convolution"
};

// Parses the output of ONEDNN_VERBOSE=profile_exec and MKL_VERBOSE=1; ignores other lines.
LibraryTimes parse_library_times(const std::string& text);

struct StepBench {
  Recipe recipe;  // as run: every "auto" resolved
  // One value per round, interleaved: the recipe's own loop; the loader alone, without steps; the
  // loop on one held batch, with the loader paused; and the bare loop on that batch.
  std::vector<StepTiming> whole, input, held, bare;
  int64_t memory_peak_bytes = 0;  // of the recipe's own loop
  // A step on the held batch, if requested.
  std::optional<LibraryTimes> libraries;
};

// Runs the trainer of `recipe` (its loader, step, metrics and records, but neither evaluation nor
// checkpoints) with a learning rate of 0, so that weights do not change and all rounds compute the
// same. Fails as training does. Empty if should_stop cancelled.
std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options);

// The ledger's cost: runs the trainer of `recipe` on one held batch with the ledger and without it,
// with a learning rate of 0. The order of the two alternates between rounds. Without a profile.
// Fails as training does. Empty if should_stop cancelled.
std::optional<Rounds> bench_ledger(Env& env, const Recipe& recipe, const StepBenchOptions& options);

}  // namespace saturate
