// A faster recipe, found by applying what diagnose.h finds, one fix at a time, and kept only where
// it pays and the loss stays as it was. See docs/diagnose.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "saturate/diagnose.h"

namespace saturate {

struct TuneOptions {
  std::string folder;       // for the files of the runs that are measured; exists
  double minutes = 5;       // about so long in all
  int rounds = 12;          // of each what-if, at most
  double tolerance = 0.05;  // by what share the loss may be larger
  Progress::Style progress = Progress::Style::kAuto;
  std::function<bool()> should_stop = [] { return false; };  // polled between steps
};

// A fix that was tried.
struct TuneStep {
  WhatIf fix;                         // its gain is over the recipe as it was by then
  std::vector<std::string> settings;  // those of the fix, and what must go with them
  std::optional<double> loss;         // where it can change; as Tuning::loss_before
  std::string rejected;               // why it was not kept; empty: it was
};

struct Tuning {
  Recipe recipe;  // tuned; "auto" stays where no fix changed it
  std::vector<TuneStep> steps;
  double rate_before = 0, rate_after = 0;  // images/s
  Gain gain = {1, 1, 1};                   // of all that was kept, both recipes taking turns
  // Training loss of the recipe, and of the tuned one, by the first `samples` of the same training:
  // mean over the last quarter of them. Empty where no fix could change it.
  int64_t samples = 0;
  std::optional<double> loss_before, loss_after;
};

// What a change of the batch does to the learning rate that goes with it: as much for sgd, lars and
// muon (P. Goyal et al., "Accurate, large minibatch SGD", 2017), its root for adam, adamw and lamb.
double scaled_rate(const OptimizerOptions& optimizer, double batch_ratio);

// Whether tuning may use it: not where what is trained would be chosen, such as augmentation.
bool is_tunable(const WhatIf& what_if);

// Fails as measure() does. Empty where should_stop gave up.
std::optional<Tuning> tune(Env& env, const Recipe& recipe, const TuneOptions& options);

}  // namespace saturate
