// SPDX-License-Identifier: BSD-3-Clause
// Learning-rate schedules: factors on optimizer.lr. All but "plateau" are pure functions of the
// step, so that resuming needs no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/registry.h"
#include "saturate/data/step_options.h"

namespace saturate {

struct NamedTensor;  // model.h

// A point of a curve. Curves begin after the warm-up, as in torch's SequentialLR.
struct CurvePoint {
  int64_t step = 0;   // after the warm-up; may be past the end
  int64_t total = 1;  // steps of the run after the warm-up, above 0
  int64_t epoch = 1;  // steps of an epoch
};

// The factor on optimizer.lr at a point.
using ScheduleCurve = double (*)(const ScheduleOptions& options, const CurvePoint& at);
std::span<const RegistryEntry<ScheduleCurve, ScheduleTraits>> schedules();

// torch's ReduceLROnPlateau with a relative threshold and eps = 0: multiplies the factor by
// schedule.gamma when the metric has not improved for more than schedule.patience observations.
class Plateau {
 public:
  // Higher values of schedule.metric are better unless it is "loss".
  explicit Plateau(const ScheduleOptions& options);
  // REQUIRES: nothing was observed or loaded.
  void minimize();
  void observe(double metric);
  double factor() const { return factor_; }
  // Treats the next value as the first; earlier reductions stay.
  void forget_best();

  // {best, bad observations, cool-down left, factor}.
  std::vector<double> state() const;
  // REQUIRES: the result of state().
  void load_state(const std::vector<double>& state);

 private:
  ScheduleOptions options_;
  bool minimizes_;
  double best_;
  int64_t bad_ = 0, cooldown_ = 0;
  double factor_ = 1;
};

// The schedule of one run. Not for concurrent use.
class Schedule {
 public:
  // `total`, `epoch`: steps of the run and of an epoch, both above 0. Fails with kUsage on an
  // unknown name, on a length below one step or not given, and on a restart_mult below 1.
  Schedule(const ScheduleOptions& options, int64_t total, int64_t epoch);

  // The factor on optimizer.lr for step `step`, from 0: a linear ramp (step + 1) / warmup over the
  // steps of schedule.warmup_epochs, then the curve. Changes between steps or, if schedule.per is
  // "epoch", between epochs; the ramp always between steps.
  double factor(int64_t step) const;

  // The momentum for step `step`, if "onecycle" cycles it; changes with the factor.
  std::optional<double> momentum(int64_t step) const;

  // Passes an evaluation to "plateau"; other schedules ignore it. `metric`: the value of
  // schedule.metric if that is not "loss".
  void observe(double loss, double metric);
  // Before the first evaluation, if schedule.metric is one of which lower is better; "loss" is.
  void minimize() { plateau_.minimize(); }
  // The state left by observe(), as a tensor; empty for all but "plateau".
  std::vector<NamedTensor> state() const;
  // Loads what state() returned from `tensors`. Fails with kRun if it is missing.
  void load_state(const std::vector<NamedTensor>& tensors);
  // Whether the schedule uses evaluations ("plateau").
  bool listens() const { return entry_.traits.needs_evaluations; }
  // To be called when evaluations are no longer comparable: see Plateau::forget_best().
  void forget_best() { plateau_.forget_best(); }

 private:
  CurvePoint after_warmup(int64_t step) const;

  ScheduleOptions options_;
  RegistryEntry<ScheduleCurve, ScheduleTraits> entry_;
  int64_t warmup_, total_, epoch_;
  Plateau plateau_;
};

}  // namespace saturate
