// Steps of a trainer, measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "advise/measured_trainer.h"
#include "advise/step_bench.h"
#include "saturate/data/env.h"
#include "saturate/trainer.h"

namespace saturate {

constexpr int kSettle = 2;         // steps after a change that are not measured
constexpr double kLongStep = 0.2;  // seconds
constexpr int kLeastRounds = 3;    // of runs that take turns, to tell their difference from noise

// Options of a run that is only measured.
inline TrainerOptions measured_options(std::string folder, std::function<bool()> should_stop) {
  TrainerOptions options;
  options.out = std::move(folder);
  options.should_stop = std::move(should_stop);
  options.progress = Progress::Style::kSilent;
  options.save = false;
  return options;
}

// Belongs to the trainer's thread.
class Stretch {
 public:
  explicit Stretch(Env& env) : env_(env) {}
  // On a GPU these wait until it has done all that it was given.
  void begin(Trainer& trainer);
  // The trainer's counts from begin() to now.
  StepTiming timing(Trainer& trainer) const;
  double elapsed_s() const { return double(env_.now_ns() - begin_ns_) * 1e-9; }

 private:
  Env& env_;
  TrainResult begin_;
  int64_t begin_ns_ = 0;
};

// Steps until `is_settled` says so, given the steps so far and their seconds, and then steps for
// `seconds` at least, one at least. Empty where the run is over before that.
std::optional<StepTiming> time_steps(
    Env& env, Trainer& trainer, double seconds,
    const std::function<bool(int steps, double elapsed_s)>& is_settled);
// The same after so many steps.
std::optional<StepTiming> time_steps(Env& env, Trainer& trainer, double seconds, int settle);

// The loader alone: takes batches for `seconds` at least, for no step to see; as many steps as
// batches. The trainer must hold no batch, or have it released.
StepTiming time_input(Env& env, Trainer& trainer, double seconds,
                      const std::function<bool()>& should_stop);

}  // namespace saturate
