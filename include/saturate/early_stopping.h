// When to stop: after a metric has not improved for a while. It also says which weights are best.
//
// The rule is that of Lightning's EarlyStopping: a value improves where it beats the best so far by
// more than min_delta; `patience` values in a row that do not, or one that is not finite, end it.
#pragma once

#include <cstdint>
#include <optional>

#include "saturate/recipe.h"

namespace saturate {

class EarlyStopping {
 public:
  // Goes into checkpoints.
  struct State {
    std::optional<double> best;
    int64_t best_step = -1;
    int waited = 0;           // values since the best one
    bool not_finite = false;  // the last value
  };

  // patience 0 never stops and only keeps the best.
  EarlyStopping(bool maximize, int patience, double min_delta);

  // Takes the metric's value after `step` steps; true where it is the best so far.
  bool observe(double value, int64_t step);
  bool should_stop() const;

  const State& state() const { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  const bool maximize_;
  const int patience_;
  const double min_delta_;
  State state_;
};

// Whether more is better of train.monitor.
bool is_maximized(const TrainOptions& options);

// The one that train.monitor and its companions ask for.
EarlyStopping make_early_stopping(const TrainOptions& options);

}  // namespace saturate
