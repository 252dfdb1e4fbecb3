// Why a run is no faster: its own step is measured while one thing at a time is changed, and what
// the changes gain says what holds it up. See docs/diagnose.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/gain.h"
#include "saturate/ledger.h"
#include "saturate/progress.h"
#include "saturate/recipe.h"

namespace saturate {

class Group;

// What holds a run up. Scripts know the names, which are fixed.
enum class Cause : int {
  kInputThreads,    // "input-threads": too few (or too many) loader threads, or batches ahead
  kDecode,          // "decode"
  kStorage,         // "storage"
  kAugmentation,    // "augmentation"
  kCopy,            // "copy": host to device
  kHostSync,        // "host-sync": the host waits for the device in every step
  kLaunchOverhead,  // "launch-overhead": calls cost more than what they compute
  kSmallBatch,      // "small-batch"
  kPrecision,       // "precision"
  kLayout,          // "layout": memory order of images and weights
  kCommunication,   // "communication"
  kStraggler,       // "straggler": one process holds the others up
  kCheckpointIo,    // "checkpoint-io"
  kMemory,          // "memory": what saves memory costs time
  kEvaluation,      // "evaluation": on held-out images, too often or on too many
  kLogging,         // "logging": records of steps, histograms
  kComputeBound,    // "compute-bound": the model's own arithmetic, which is as it should be
};
inline constexpr int kCauseCount = int(Cause::kComputeBound) + 1;
std::string_view cause_name(Cause cause);

// What a change does to what is learnt.
enum class Alters {
  kNothing,   // the same samples and the same arithmetic
  kRounding,  // the same but for rounding, of pixels or of arithmetic
  kTraining,  // another training
};

// One change of the recipe, and what it gains.
struct WhatIf {
  Cause cause = Cause::kComputeBound;  // that it would remove
  std::vector<std::string> settings;   // "data.threads=4"; empty: no recipe key does it
  Alters alters = Alters::kNothing;
  std::string note;  // where the gain holds, such as "from the second epoch on"; may be empty
  // In images/s over the recipe's own: measured of steps, and in a Diagnosis of the whole training.
  // Empty where it was not measured, and `skipped` says why.
  std::optional<Gain> gain;
  std::string skipped;
  bool no_time = false;  // which is why
  // False: `gain` follows from other measurements, which may give it no interval: low == high.
  bool measured = true;

  // The settings as one text, between spaces.
  std::string text() const;
};

// What a run does now and then between its steps.
struct Interlude {
  double seconds = 0;  // that the run waits for one
  double times = 0;    // in the whole training
};

// What was found in a run of a recipe.
struct Measurements {
  Recipe recipe;            // as run: every "auto" resolved, but with a learning rate of 0
  double rate = 0;          // images/s of the recipe
  double compute_rate = 0;  // on a batch that is held, without input and without saving
  double input_rate = 0;    // of the loader alone, up to the device
  // What the recipe would gain at most from free input; on a GPU the held batch is there already,
  // so that nothing is copied either.
  Gain without_input = {1, 1, 1};
  Gain input_alone = {1, 1, 1};  // and from a step that is free
  PhaseTimes phases;             // of a step of the recipe, seconds
  double cores_used = 0;         // CPU seconds a second
  int cores = 1;                 // that the process may use
  int loader_threads = 1;
  int batch = 0;     // images
  double run_s = 0;  // what the steps of the whole training take at this rate; 0: unknown
  // Of the whole training; `saves` are those that came in no turn and so are not in `rate`.
  Interlude evaluations, saves;
  // What the whole training takes, and the shares of it that go to evaluation, to saving (in turns
  // and beside them), and to a phase of the steps; 0 where run_s is unknown.
  double whole_s() const;
  double evaluation_share() const;
  double checkpoint_share() const;
  double phase_share(Phase phase) const;
  bool on_gpu = false;
  bool is_cut_short = false;  // not all was measured: time was up, or a gain was enough
  std::vector<WhatIf> what_ifs;
  // Of several processes, each one's phases of a step, seconds: the mean, and by round; empty where
  // there is one alone. Then there are no what-ifs, and the rates of compute and input are not
  // known.
  std::vector<PhaseTimes> ranks;
  std::vector<std::vector<PhaseTimes>> rank_rounds;  // [rank][round]
  Gain without_sums = {1, 1, 1};  // of steps whose gradients stay each process's own
};

struct Diagnosis {
  Cause cause = Cause::kComputeBound;
  bool healthy = true;  // all that applies was measured, and nothing is worth doing
  // Nothing that was measured is worth doing, but that was too little to call the run healthy.
  bool undecided = false;
  // rate / min(compute_rate, input_rate), at most 1; of several processes the share of their time
  // in which they do not wait for each other.
  double efficiency = 0;
  std::string summary;  // one sentence
  // Those worth doing, by gain; measured ones that may be, see may_be_worth(); all others that were
  // measured; all that were not.
  std::vector<WhatIf> fixes, uncertain, idle, skipped;
};

// Below this a gain is not worth a change, and above it must be significant. A change that trains
// something else, or leaves less known of it, must gain more.
inline constexpr double kWorthGain = 1.05, kWorthGainTraining = 1.10;

// A gain whose interval reaches so far, from 1 or below, is neither shown nor ruled out.
inline constexpr double kOpenGain = 1.25;

// Whether a gain is worth the change.
bool is_worth(const WhatIf& what_if);
// Whether it was measured too coarsely to tell.
bool may_be_worth(const WhatIf& what_if);
// Share of the wall time that a gain saves.
inline double saved_share(const Gain& gain) {
  return 1 - 1 / gain.ratio;
}

// Reads measurements; a pure function. See docs/diagnose.md for its rules.
Diagnosis classify(const Measurements& found);

struct DiagnoseOptions {
  std::string folder;              // for the files of the runs that are measured; exists
  double seconds = 60;             // about so long in all, set-up included
  int rounds = 12;                 // of each what-if, at most; 3 at least
  std::vector<std::string> tries;  // settings to try too, "key=value"
  double enough = 0;               // no what-if is measured after one that gains more; 0: all are
  // Which what-ifs to measure.
  std::function<bool(const WhatIf&)> wanted = [](const WhatIf&) { return true; };
  Progress::Style progress = Progress::Style::kAuto;
  // Polled between steps; true gives up.
  std::function<bool()> should_stop = [] { return false; };
};

// Runs the trainer of `recipe` with a learning rate of 0, and beside it in turns one changed in one
// way after another. Fails as training does where the recipe itself does; a what-if that fails is
// told in `skipped`. Empty where should_stop gave up.
std::optional<Measurements> measure(Env& env, const Recipe& recipe, const DiagnoseOptions& options);

// The same of a run of several processes, for options.seconds of steps: each one's own work, and
// in turns with them steps that sum no gradients; no other what-ifs. Collective; options.folder is
// the same on all.
std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const std::shared_ptr<Group>& group,
                                    const DiagnoseOptions& options);

}  // namespace saturate
