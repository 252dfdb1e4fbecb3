// The changes of a recipe that are worth trying, before any is measured, and the comparison of the
// step times of several processes.
#pragma once

#include <string>
#include <vector>

#include "advise/diagnose.h"
#include "advise/warm_source.h"

namespace saturate {

struct Machine {
  int cores = 1;  // that the process may use
  bool on_gpu = false;
  bool has_bf16 = false;    // computes bf16 natively
  bool augments = false;    // its GPU can augment: the build has the kernel
  double memory_bytes = 0;  // that is available on the host
};

// `recipe`: resolved. `checkpoint_share`: of a step's time. In the order in which to try them; one
// that this machine or source rules out says so in `skipped`.
std::vector<WhatIf> input_what_ifs(const Recipe& recipe, const Machine& machine,
                                   const SourceFacts& source);
std::vector<WhatIf> step_what_ifs(const Recipe& recipe, const Machine& machine,
                                  const SourceFacts& source, double checkpoint_share);

// Each effect of augmentation alone, if there are several.
std::vector<WhatIf> single_effects(const Recipe& recipe);

// Number of evaluations in a training of that length: at its end if never before. Number of saves
// before its end.
double evaluations_of(const TrainOptions& train, double epochs, double epoch_steps);
double saves_of(const CheckpointOptions& checkpoint, double epochs, double epoch_steps,
                double run_s);

// "KEY=VALUE" of the recipe after a change of its members.
template <class Change>
std::string setting_after(Recipe recipe, const std::string& key, const Change& change) {
  change(recipe);
  return setting_of(recipe, key);
}

// Settings that a user asks to try over `recipe`.
std::vector<WhatIf> asked_what_ifs(const Recipe& recipe, const std::vector<std::string>& settings);

// Whether it is in the loader's work; the others are in the step.
bool is_input(Cause cause);

// Mean over the processes of each one's share of a step without waiting for others: 1 if none
// waits.
double group_efficiency(const std::vector<PhaseTimes>& ranks);

// Two what-ifs: a step without the time that the rank with the most own work takes longer than the
// next, inferred round by round; and the measured gain of steps without all-reduce. REQUIRES: two
// ranks at least.
std::vector<WhatIf> group_what_ifs(const Measurements& found);

// "rank 1 works 12.1 ms a step, 7.0 ms more than the next, most of it in wait"
std::string straggler_text(const std::vector<PhaseTimes>& ranks);

}  // namespace saturate
