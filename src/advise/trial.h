// A run that is measured in short turns, and rests in between. Several runs are interleaved on one
// machine, so that a temporary slowdown affects all of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "advise/step_bench.h"
#include "saturate/data/recipe.h"
#include "saturate/trainer.h"

namespace saturate {

// A run's work in its turn.
enum class Turn {
  kWhole,  // trains
  kHeld,   // trains on one batch over and over, while its loader rests
  kInput,  // only takes batches from its loader
  // Timed separately, as StepTiming::wall_s of one: the seconds that the run would wait for it.
  kEvaluate,  // an evaluation, of which no more is done than there is time for
  kSave,      // a checkpoint
};

// Belongs to one thread. While paused, the run only uses memory.
class Trial {
 public:
  struct Setup {
    std::string folder;                   // for its files; created
    std::shared_ptr<const Dataset> data;  // its training source
    bool save = true;                     // as the recipe says; false: never
    std::function<bool()> should_stop;    // polled between steps
    std::function<void()> waiting;        // called now and then while a turn lasts
  };

  // Builds the trainer, and fails as it does. `env` must outlive this.
  Trial(Env& env, const Recipe& recipe, Setup setup);

  // As run: every "auto" resolved.
  const Recipe& recipe() const { return trainer_.recipe(); }

  // One turn: measures `seconds` at least, a step at least, after those steps that it takes to
  // settle. Empty if should_stop cancelled; fails as training does.
  std::optional<StepTiming> measure(Turn turn, double seconds);
  // Whether measure() has failed.
  bool has_failed() const { return has_failed_; }

 private:
  std::optional<StepTiming> take_turn(Turn turn, double seconds);
  bool should_stop();
  bool is_settled(Turn turn, int steps, double elapsed_s);

  Env& env_;
  const Setup setup_;
  int64_t shown_ns_;
  bool has_failed_ = false;
  Trainer trainer_;  // last: it asks the others
};

}  // namespace saturate
