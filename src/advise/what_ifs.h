// The changes of a recipe that are worth trying, before any is measured.
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

// `recipe`: resolved. `checkpoint_share`: of a step's time. By what is tried first within each
// side; one that this machine or source rules out says so in `skipped`.
std::vector<WhatIf> input_what_ifs(const Recipe& recipe, const Machine& machine,
                                   const SourceFacts& source);
std::vector<WhatIf> step_what_ifs(const Recipe& recipe, const Machine& machine,
                                  const SourceFacts& source, double checkpoint_share);

// Each effect of augmentation by itself, where there are several.
std::vector<WhatIf> single_effects(const Recipe& recipe);

// How often a training of that length evaluates: at its end if never before. How often it saves
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

// Whether it lies in what the loader does; the others lie in the step.
bool is_input(Cause cause);

}  // namespace saturate
