// Changes to a run that only measure it, and the timing of its steps. Several runs are interleaved
// on one thread, so that a temporary slowdown affects all of them: all but one rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "advise/step_bench.h"
#include "saturate/data/env.h"
#include "saturate/feed.h"
#include "saturate/model.h"
#include "saturate/trainer.h"

namespace saturate {

// Only for runs of several processes: false skips the all-reduce from the next step on, so that
// each process trains alone. All ranks call it before the same step.
void sum_gradients(Trainer& trainer, bool sums);

// In an epoch, over all ranks.
double epoch_images(Trainer& trainer);
double epoch_steps(Trainer& trainer);

// The following only for runs of one process, except where they say otherwise.

// From now on every step is on the same batch, the first of this epoch's order, which is returned;
// the loader rests. Shows the cost of a run without its input.
DeviceBatch hold_batch(Trainer& trainer);
// The input of the run's model.
ModelInput model_input_of(Trainer& trainer);
// Continues with the epoch's next batch. On any rank.
void release_batch(Trainer& trainer);
// Evaluates at least a batch, for at most `seconds`, and records nothing. Returns the seconds of an
// evaluation of all images, in proportion if it was cut short; 0 without data.eval_source. On any
// rank, with that rank's images.
double time_evaluation(Trainer& trainer, double seconds);
// Saves a checkpoint as when one is due, and returns the seconds that the run waits for it.
// REQUIRES with several ranks: all call it together, after rest().
double time_save(Trainer& trainer);
// Switches the ledger off or on (as it is from the start), to measure its own cost.
void set_ledger(Trainer& trainer, bool enabled);
// Stops the loader and waits for a checkpoint being written: the run uses only memory until
// hold_batch() or release_batch(), which set the process's switches for it again. On any rank.
void rest(Trainer& trainer);

// Without output but metrics.jsonl.
inline void watch_little(WatchOptions& watch) {
  watch.progress = false;
  watch.prometheus_port = 0;  // which the next run may use
  watch.trace.clear();
  watch.samples = watch.histograms = 0;
}

// With a constant rate if the schedule needs evaluations.
inline void skip_evaluations(Recipe& recipe) {
  recipe.data.eval_source.clear();
  recipe.train.early_stop = 0;
  if (!traits_of(recipe.schedule).needs_evaluations) return;
  recipe.schedule = {};
  recipe.schedule.name = "constant";
}

// Without work between steps, without an end before the measurements', and with constant weights,
// so that all measurements compute the same numbers.
inline Recipe measured_recipe(Recipe recipe) {
  skip_evaluations(recipe);
  recipe.optimizer.lr = 0;
  recipe.train.epochs = std::max(recipe.train.epochs, 1e6);
  // Always of the first size, however many epochs the measurement takes; `size` remains the last.
  if (auto& sizes = recipe.augment.size_changes; sizes.size() > 1)
    sizes = {sizes.front(), {std::numeric_limits<int>::max(), recipe.augment.size}};
  recipe.train.max_minutes = 0;
  watch_little(recipe.watch);
  return recipe;
}

// The same, but with an evaluation that is timed separately, and in no turn, if it is `timed`.
inline Recipe measured_with_evaluation(const Recipe& asked, bool timed) {
  Recipe recipe = measured_recipe(asked);
  if (timed) recipe.data.eval_source = asked.data.eval_source;
  recipe.train.eval_every = recipe.train.eval_every_steps = 0;
  return recipe;
}
// That recipe, as resolved, without what only timing the evaluation changed.
inline Recipe without_evaluation(Recipe resolved, const TrainOptions& asked) {
  resolved.data.eval_source.clear();
  resolved.train.eval_every = asked.eval_every;
  resolved.train.eval_every_steps = asked.eval_every_steps;
  return resolved;
}

constexpr int kSettle = 2;         // steps after a change that are not measured
constexpr double kLongStep = 0.2;  // seconds
constexpr int kLeastRounds = 3;    // of interleaved runs, to tell their difference from noise

// Options of a run that is only measured; `group`: if it has several processes.
inline TrainerOptions measured_options(std::string folder, std::function<bool()> should_stop,
                                       std::shared_ptr<Group> group = nullptr, bool save = false) {
  TrainerOptions options;
  options.group = std::move(group);
  options.out = std::move(folder);
  options.should_stop = std::move(should_stop);
  options.progress = Progress::Style::kSilent;
  options.save = save;
  return options;
}

// Some steps of a trainer, measured. Belongs to the trainer's thread.
class Stretch {
 public:
  // Begins. On a GPU this, begin() and timing() wait until it has done all its work.
  Stretch(Env& env, Trainer& trainer) : env_(env), trainer_(trainer) { begin(); }
  void begin();
  // The trainer's counts from begin() to now.
  StepTiming timing() const;
  double elapsed_s() const { return double(env_.now_ns() - begin_ns_) * 1e-9; }

 private:
  Env& env_;
  Trainer& trainer_;
  TrainResult begin_;
  int64_t begin_ns_ = 0;
};

// Makes steps until `is_settled` is true for their number and seconds, then measures steps for at
// least `seconds`, at least one. Empty if the run ends before that.
std::optional<StepTiming> time_steps(
    Env& env, Trainer& trainer, double seconds,
    const std::function<bool(int steps, double elapsed_s)>& is_settled);
// The same after `settle` steps.
std::optional<StepTiming> time_steps(Env& env, Trainer& trainer, double seconds, int settle);

// The loader alone: takes batches for at least `seconds`, each counted as a step, as if they were
// trained on. Releases a held batch.
StepTiming time_input(Env& env, Trainer& trainer, double seconds,
                      const std::function<bool()>& should_stop);

// A run's work in its turn.
enum class Turn {
  kWhole,  // trains
  kHeld,   // trains on one batch over and over, while its loader rests
  kInput,  // only takes batches from its loader
  // Timed separately, as StepTiming::wall_s of one: the seconds that the run would wait for it.
  kEvaluate,  // an evaluation, cut short at the time limit
  kSave,      // a checkpoint
};

// A run that is measured in short turns, and rests in between. Belongs to one thread.
class Trial {
 public:
  // Builds the trainer, and fails as it does. `options`: of measured_options(). `env` must outlive
  // this.
  Trial(Env& env, const Recipe& recipe, TrainerOptions options);

  // As run: every "auto" resolved.
  const Recipe& recipe() const { return trainer_.recipe(); }
  double epoch_steps() { return saturate::epoch_steps(trainer_); }

  // The share of its epoch before its next batch, below 1.
  double place();
  // The next turn begins there.
  void go_to(double place);

  // One turn: measures `seconds` at least, a step at least, after those steps that it takes to
  // settle. Empty if should_stop cancelled; fails as training does.
  std::optional<StepTiming> measure(Turn turn, double seconds);
  // Whether measure() has failed.
  bool has_failed() const { return has_failed_; }

 private:
  std::optional<StepTiming> take_turn(Turn turn, double seconds);
  bool is_settled(Turn turn, int steps, double elapsed_s);

  Env& env_;
  const std::function<bool()> should_stop_;
  bool has_failed_ = false;
  Trainer trainer_;
};

}  // namespace saturate
