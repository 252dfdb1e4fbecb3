// SPDX-License-Identifier: BSD-3-Clause
// Stops training when a metric no longer improves, and remembers the best weights' step.
//
// The rule of Lightning's EarlyStopping: a value improves if it beats the best so far by more than
// min_delta; `patience` values in a row without improvement, or a non-finite one, end training.
#pragma once

#include <cstdint>
#include <optional>

#include "saturate/data/recipe.h"

namespace saturate {

class EarlyStopping {
 public:
  // Saved in checkpoints.
  struct State {
    std::optional<double> best;
    int64_t best_step = -1;
    int waited = 0;           // values since the best one
    bool not_finite = false;  // the last value
  };

  // Reads monitor, monitor_mode, early_stop (the patience; 0 never stops and only keeps the best)
  // and min_delta. `higher_is_better`: as for is_maximized().
  explicit EarlyStopping(const TrainOptions& options, bool higher_is_better = true);

  // Takes the metric's value after `step` steps; true if it is the best so far.
  bool observe(double value, int64_t step);
  bool should_stop() const;

  const State& state() const { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  const TrainOptions options_;
  const bool is_maximized_;
  State state_;
};

// Whether a higher train.monitor is better. `higher_is_better`: by the task, of a metric that is
// not the loss.
bool is_maximized(const TrainOptions& options, bool higher_is_better = true);

}  // namespace saturate
