// Why a run is slow: measures its own step while changing one thing at a time; the speedups show
// the bottleneck. See docs/diagnose.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "advise/gain.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/progress.h"
#include "store/link.h"

namespace saturate {

class Group;

// The bottleneck of a run. The names are a contract for scripts.
enum class Cause : int {
  kInputThreads,    // "input-threads": wrong number of loader threads or prefetched batches
  kDecode,          // "decode"
  kStorage,         // "storage"
  kAugmentation,    // "augmentation"
  kCopy,            // "copy": host to device
  kHostSync,        // "host-sync": the host waits for the device in every step
  kLaunchOverhead,  // "launch-overhead": launching operators costs more than their work
  kSmallBatch,      // "small-batch"
  kPrecision,       // "precision"
  kLayout,          // "layout": memory order of images and weights
  kCommunication,   // "communication"
  kStraggler,       // "straggler": one process delays the others
  kCheckpointIo,    // "checkpoint-io"
  kMemory,          // "memory": saving memory costs time
  kEvaluation,      // "evaluation": too frequent or too large
  kLogging,         // "logging": records of steps, histograms
  kComputeBound,    // "compute-bound": the model's own arithmetic, as it should be
};
inline constexpr int kCauseCount = int(Cause::kComputeBound) + 1;
std::string_view cause_name(Cause cause);

// The effect of a change on training.
enum class Alters {
  kNothing,   // the same samples and arithmetic
  kRounding,  // the same except for rounding, of pixels or arithmetic
  kTraining,  // different training
};

// One change of the recipe, and its speedup.
struct WhatIf {
  Cause cause = Cause::kComputeBound;      // the bottleneck it would remove
  std::vector<std::string> settings = {};  // "data.threads=4"; empty: not a recipe key
  Alters alters = Alters::kNothing;
  std::string note = {};  // restricts the speedup, such as "from the second epoch on"; may be empty
  // Ratio of images/s to the recipe's own: measured in steps, and in a Diagnosis converted to the
  // whole training. Empty if not measured; `skipped` says why.
  std::optional<Gain> gain = std::nullopt;
  std::string skipped = {};
  bool no_time = false;  // the reason was lack of time
  bool failed = false;   // or a failure: it does not run
  // False: `gain` is inferred from other measurements, possibly without an interval: low == high.
  bool measured = true;

  // The settings as one text, separated by spaces.
  std::string text() const;
};

// A run's occasional work between steps.
struct Interlude {
  double seconds = 0;  // blocking time of one
  double times = 0;    // number in the whole training
  double total_s() const { return seconds * times; }
};

// The measurements of a run of a recipe.
struct Measurements {
  Recipe recipe;                // as run: every "auto" resolved, learning rate 0
  std::string unit = "images";  // of samples; "samples" if they are tensors
  double rate = 0;              // images/s of the recipe
  double compute_rate = 0;      // on a held batch, without input and saving
  double input_rate = 0;        // of the loader alone, up to the device
  // The recipe's maximum speedup from free input; on a GPU the held batch is on the device, so that
  // no copies are made either.
  Gain without_input = {1, 1, 1};
  Gain input_alone = {1, 1, 1};  // and from a free step
  PhaseTimes phases;             // of one step of the recipe, seconds
  double cores_used = 0;         // CPU seconds per second
  int cores = 1;                 // available to the process
  int loader_threads = 1;
  int batch = 0;     // images
  double run_s = 0;  // of all training steps at this rate; 0: unknown
  // In the whole training; `saves` are those outside measured turns, so not included in `rate`.
  Interlude evaluations, saves;
  // Time of the whole training, and its shares of evaluation, of saving (inside and outside turns),
  // and of a phase of the steps; 0 if run_s is unknown.
  double whole_s() const;
  double evaluation_share() const;
  double checkpoint_share() const;
  double phase_share(Phase phase) const;
  std::optional<LinkUse> link;  // of the loader alone, if the source is in a store
  bool on_gpu = false;
  bool is_cut_short = false;  // measuring stopped early: out of time, or a speedup was enough
  std::vector<WhatIf> what_ifs;
  // With several processes, each one's phases of a step, seconds: the mean, and by round; empty
  // with one process. There are then no what-ifs, and the rates of compute and input are unknown.
  std::vector<PhaseTimes> ranks;
  std::vector<std::vector<PhaseTimes>> rank_rounds;  // [rank][round]
  Gain without_sums = {1, 1, 1};                     // for steps without all-reduce
};

struct Diagnosis {
  Cause cause = Cause::kComputeBound;
  bool healthy = true;  // everything applicable was measured, and nothing is worth doing
  // No measured change is worth doing, but too little was measured to call the run healthy.
  bool undecided = false;
  // rate / min(compute_rate, input_rate), at most 1; with several processes the share of their time
  // without waiting for each other.
  double efficiency = 0;
  std::string summary;  // one sentence
  // Changes worth doing, by speedup; measured ones that may be, see may_be_worth(); all other
  // measured ones; all that were not measured.
  std::vector<WhatIf> fixes, uncertain, idle, skipped;
};

// Whether a speedup is worth the change.
bool is_worth(const WhatIf& what_if);
// Whether it was measured too imprecisely to tell.
bool may_be_worth(const WhatIf& what_if);
// Share of the wall time that a speedup saves.
inline double saved_share(const Gain& gain) {
  return 1 - 1 / gain.ratio;
}

// Interprets measurements; a pure function. See docs/diagnose.md for its rules.
Diagnosis classify(const Measurements& found);

struct DiagnoseOptions {
  std::string folder;              // for the files of the measured runs; exists
  double seconds = 60;             // approximate total time, including set-up
  int rounds = 12;                 // maximum per what-if; at least 3
  std::vector<std::string> tries;  // additional settings to try, "key=value"
  double enough = 0;               // stop after a what-if with a larger speedup; 0: measure all
  // Which what-ifs to measure.
  std::function<bool(const WhatIf&)> wanted = [](const WhatIf&) { return true; };
  Progress::Style progress = Progress::Style::kAuto;
  // Polled between steps; true cancels.
  std::function<bool()> should_stop = [] { return false; };
};

// Runs the trainer of `recipe` with a learning rate of 0, interleaved with one changed trainer
// after another. Fails like training if the recipe itself does; a failing what-if is reported in
// `skipped`. Empty if should_stop cancelled.
std::optional<Measurements> measure(Env& env, const Recipe& recipe, const DiagnoseOptions& options);

// The recipe with further settings ("section.key=value").
Recipe with_settings(const Recipe& recipe, const std::vector<std::string>& settings);

// Measures `recipe` and another one for about options.seconds; otherwise as measure().
std::optional<Rounds> compare(Env& env, const Recipe& recipe, const Recipe& other,
                              const DiagnoseOptions& options);

// As measure() for a run of several processes, for options.seconds of steps: each one's own work,
// interleaved with steps without all-reduce; no other what-ifs. Collective; options.folder is the
// same on all.
std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const std::shared_ptr<Group>& group,
                                    const DiagnoseOptions& options);

}  // namespace saturate
