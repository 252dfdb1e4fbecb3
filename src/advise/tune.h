// Finds a faster recipe by applying diagnose.h's fixes one at a time, keeping those that give a
// speedup without changing the loss. See docs/diagnose.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "advise/diagnose.h"
#include "saturate/data/recipe.h"

namespace saturate {

struct TuneOptions {
  std::string folder;       // for the files of the measured runs; exists
  double minutes = 5;       // approximate total time
  int rounds = 12;          // maximum per what-if
  double tolerance = 0.05;  // allowed relative increase of the loss
  Progress::Style progress = Progress::Style::kAuto;
  std::function<bool()> should_stop = [] { return false; };  // polled between steps
};

// A tried fix.
struct TuneStep {
  WhatIf fix;                         // its gain is relative to the recipe at that time
  std::vector<std::string> settings;  // the fix's, and settings they require
  std::optional<double> loss;         // if it can change; as Tuning::loss_before
  std::string rejected;               // why it was not kept; empty: kept
};

struct Tuning {
  Recipe recipe;  // tuned; "auto" stays unless a fix changed it
  std::vector<TuneStep> steps;
  // The last diagnosis had no time for all changes, or left one open.
  bool undecided = false;
  std::string unit = "images";             // of samples; "samples" if they are tensors
  double rate_before = 0, rate_after = 0;  // images/s
  Gain gain = {1, 1, 1};                   // of all kept fixes, from interleaved runs of both
                                           // recipes
  // Training loss of the original and the tuned recipe over the first `samples` of the same
  // training: mean over their last quarter. Empty if no fix could change it.
  int64_t samples = 0;
  std::optional<double> loss_before, loss_after;
};

// Scaling of the learning rate with the batch size: linear for sgd, lars and muon (P. Goyal et al.,
// "Accurate, large minibatch SGD", 2017), square root for adam, adamw and lamb.
double scaled_rate(const OptimizerOptions& optimizer, double batch_ratio);

// Fails as measure() does. Empty if should_stop cancelled.
std::optional<Tuning> tune(Env& env, const Recipe& recipe, const TuneOptions& options);

// Trains by `recipe` from its beginning, without evaluation and saving, on `samples` samples (those
// of whole steps) and returns the mean loss over the last quarter of them. Fails as training does.
// Empty if should_stop cancelled.
std::optional<double> early_loss(Env& env, Recipe recipe, const std::string& folder,
                                 int64_t samples, const std::function<bool()>& should_stop);

}  // namespace saturate
