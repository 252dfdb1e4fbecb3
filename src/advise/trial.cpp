#include "advise/trial.h"

#include <utility>

#include "advise/measured_trainer.h"

namespace saturate {
namespace {

constexpr int64_t kShowEveryNs = 100'000'000;

TrainerOptions options_of(const Trial::Setup& setup, std::function<bool()> should_stop) {
  auto options = measured_options(setup.folder, std::move(should_stop), nullptr, setup.save);
  options.dataset = setup.data;
  return options;
}

}  // namespace

Trial::Trial(Env& env, const Recipe& recipe, Setup setup)
    : env_(env),
      setup_(std::move(setup)),
      shown_ns_(env.now_ns()),
      trainer_(env, recipe, options_of(setup_, [this] { return should_stop(); })) {}

std::optional<StepTiming> Trial::measure(Turn turn, double seconds) {
  try {
    const auto timing = take_turn(turn, seconds);
    saturate::rest(trainer_);
    return timing;
  } catch (...) {
    has_failed_ = true;
    throw;
  }
}

std::optional<StepTiming> Trial::take_turn(Turn turn, double seconds) {
  if (setup_.should_stop()) return std::nullopt;
  if (turn == Turn::kInput) return time_input(env_, trainer_, seconds, setup_.should_stop);
  if (turn == Turn::kEvaluate || turn == Turn::kSave) {
    StepTiming timing;
    timing.steps = 1;
    timing.wall_s = turn == Turn::kSave ? time_save(trainer_) : time_evaluation(trainer_, seconds);
    return timing;
  }
  if (turn == Turn::kHeld)
    hold_batch(trainer_);
  else
    release_batch(trainer_);
  return time_steps(env_, trainer_, seconds, [&](int steps, double elapsed_s) {
    return is_settled(turn, steps, elapsed_s);
  });
}

// Polled by the trainer between steps, and while it copies data.
bool Trial::should_stop() {
  if (setup_.waiting && env_.now_ns() - shown_ns_ > kShowEveryNs) {
    setup_.waiting();
    shown_ns_ = env_.now_ns();
  }
  return setup_.should_stop();
}

// The loader's threads begin with nothing ready. If input is the limit, steps take batches as they
// come, and find none ready; else the loader works ahead until it must wait. One long step is as
// much warm-up as two short ones.
bool Trial::is_settled(Turn turn, int steps, double elapsed_s) {
  if (steps < kSettle && (steps == 0 || elapsed_s < kLongStep)) return false;
  if (turn == Turn::kHeld) return true;
  const int ahead = recipe().data.prefetch, ready = int(ready_batches(trainer_));
  return steps >= ahead + kSettle || ready == 0 || ready >= ahead - 1;
}

}  // namespace saturate
