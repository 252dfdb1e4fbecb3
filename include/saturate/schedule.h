// Learning-rate schedules: factors on optimizer.lr. All but "plateau" are pure functions of the
// step, so that a resumed run has nothing to restore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "saturate/model.h"
#include "saturate/registry.h"
#include "saturate/step_options.h"

namespace saturate {

// Where a curve is asked for. Curves begin where the warm-up ends, as with torch's SequentialLR.
struct CurvePoint {
  int64_t step = 0;   // after the warm-up; may be past the end
  int64_t total = 1;  // steps of the run after the warm-up, above 0
  int64_t epoch = 1;  // steps of an epoch
};

// The factor on optimizer.lr at a point.
using ScheduleCurve = double (*)(const ScheduleOptions& options, const CurvePoint& at);
std::span<const RegistryEntry<ScheduleCurve>> schedules();

// torch's ReduceLROnPlateau with a relative threshold and eps = 0: a factor that falls by
// schedule.gamma when the metric has not improved for more than schedule.patience observations.
class Plateau {
 public:
  explicit Plateau(const ScheduleOptions& options);
  void observe(double metric);
  double factor() const { return factor_; }
  // Takes the next value for the first one; what has been cut stays cut.
  void forget_best();

  // {best, bad observations, cool-down left, factor}.
  std::vector<double> state() const;
  // REQUIRES: what state() gave.
  void load_state(const std::vector<double>& state);

 private:
  ScheduleOptions options_;
  double best_;
  int64_t bad_ = 0, cooldown_ = 0;
  double factor_ = 1;
};

// The schedule of one run. Not for concurrent use.
class Schedule {
 public:
  // `total`, `epoch`: steps of the run and of an epoch, both above 0. Fails with kUsage on an
  // unknown name, or on a length that is no whole step.
  Schedule(const ScheduleOptions& options, int64_t total, int64_t epoch);

  // The factor on optimizer.lr for step `step`, from 0: a linear ramp (step + 1) / warmup over the
  // steps of schedule.warmup_epochs, then the curve. Changes between steps or, where schedule.per
  // is "epoch", with the epoch; the ramp always by the step.
  double factor(int64_t step) const;

  // The momentum of step `step`, where "onecycle" cycles it; changes when the factor does.
  std::optional<double> momentum(int64_t step) const;

  // Tells "plateau" of an evaluation; the other schedules do not listen.
  void observe(double loss, double accuracy);
  // What observe() has left behind, as a tensor; nothing for all but "plateau".
  std::vector<NamedTensor> state() const;
  // Takes what state() gave from among `tensors`. Fails with kRun where it is not there.
  void load_state(const std::vector<NamedTensor>& tensors);
  // Whether it compares evaluations, as "plateau" does.
  bool listens() const { return options_.name == "plateau"; }
  // Where evaluations are no longer of what they were: see Plateau::forget_best().
  void forget_best() { plateau_.forget_best(); }

 private:
  CurvePoint after_warmup(int64_t step) const;

  ScheduleOptions options_;
  ScheduleCurve curve_;
  int64_t warmup_, total_, epoch_;
  Plateau plateau_;
};

}  // namespace saturate
