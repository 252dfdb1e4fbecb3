#include "advise/measured_trainer.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "run/setup.h"
#include "run/trainer_state.h"

namespace saturate {

struct MeasuredTrainer {
  static auto& state(Trainer& trainer) { return *trainer.state_; }
};

namespace {

TrainResult now_of(Trainer& trainer) {
  if (trainer.recipe().train.device == "cuda") at::zeros({}, at::Device(at::kCUDA)).item();
  return trainer.so_far();
}

double cpu_s(const TrainResult& so_far) {
  return so_far.cores_used * so_far.wall_s;
}

}  // namespace

void sum_gradients(Trainer& trainer, bool sums) {
  MeasuredTrainer::state(trainer).learner.reducer()->set_enabled(sums);
}

double epoch_images(Trainer& trainer) {
  return double(MeasuredTrainer::state(trainer).input.data().size());
}

double epoch_steps(Trainer& trainer) {
  return double(MeasuredTrainer::state(trainer).input.epoch_steps());
}

DeviceBatch hold_batch(Trainer& trainer) {
  auto& state = MeasuredTrainer::state(trainer);
  state.learner.set_switches();
  return state.input.hold(state.position.epoch);
}

void release_batch(Trainer& trainer) {
  auto& state = MeasuredTrainer::state(trainer);
  state.learner.set_switches();
  state.input.release(state.position);
}

ModelInput model_input_of(Trainer& trainer) {
  auto& state = MeasuredTrainer::state(trainer);
  const Recipe& recipe = state.run.recipe;
  return model_input(state.run.env, recipe, batch_fields(state.input.data(), recipe.augment));
}

double time_evaluation(Trainer& trainer, double seconds) {
  return MeasuredTrainer::state(trainer).evaluation.time(seconds);
}

double time_save(Trainer& trainer) {
  auto& state = MeasuredTrainer::state(trainer);
  const double begin = state.run.ledger.times()[Phase::kCheckpoint];
  state.saver.save(state.position.step, /*wait=*/false);
  return state.run.ledger.times()[Phase::kCheckpoint] - begin;
}

void set_ledger(Trainer& trainer, bool enabled) {
  RunContext& run = MeasuredTrainer::state(trainer).run;
  run.ledger.set_enabled(enabled);
  if (run.streams) run.streams->set_enabled(enabled);
}

void rest(Trainer& trainer) {
  auto& state = MeasuredTrainer::state(trainer);
  state.input.feeder().stop();
  state.saver.settle();
}

void StepTiming::add(const StepTiming& other) {
  steps += other.steps;
  samples += other.samples;
  wall_s += other.wall_s;
  cpu_s += other.cpu_s;
  phases.add(other.phases);
}

PhaseTimes divided(PhaseTimes times, double by) {
  for (double& seconds : times.seconds) seconds /= by;
  times.network_wait /= by;
  return times;
}

StepTiming sum_of(std::span<const StepTiming> timings) {
  StepTiming sum;
  for (const StepTiming& timing : timings) sum.add(timing);
  return sum;
}

std::vector<double> rates_of(std::span<const StepTiming> timings) {
  std::vector<double> rates;
  for (const StepTiming& timing : timings) rates.push_back(timing.images_per_s());
  return rates;
}

void Stretch::begin() {
  begin_ = now_of(trainer_);
  begin_ns_ = env_.now_ns();
}

StepTiming Stretch::timing() const {
  const TrainResult now = now_of(trainer_);
  StepTiming timing;
  timing.steps = now.steps - begin_.steps;
  timing.samples = now.samples - begin_.samples;
  timing.phases = now.phases - begin_.phases;
  timing.wall_s = timing.phases.total();
  timing.cpu_s = cpu_s(now) - cpu_s(begin_);
  return timing;
}

std::optional<StepTiming> time_steps(
    Env& env, Trainer& trainer, double seconds,
    const std::function<bool(int steps, double elapsed_s)>& is_settled) {
  Stretch stretch(env, trainer);
  for (int steps = 0; !is_settled(steps, stretch.elapsed_s()); ++steps)
    if (!trainer.step()) return std::nullopt;
  stretch.begin();
  do {
    if (!trainer.step()) return std::nullopt;
  } while (stretch.elapsed_s() < seconds);
  return stretch.timing();
}

std::optional<StepTiming> time_steps(Env& env, Trainer& trainer, double seconds, int settle) {
  return time_steps(env, trainer, seconds, [settle](int steps, double) { return steps >= settle; });
}

StepTiming time_input(Env& env, Trainer& trainer, double seconds,
                      const std::function<bool()>& should_stop) {
  release_batch(trainer);
  auto& state = MeasuredTrainer::state(trainer);
  for (int i = 0; i < kSettle; ++i) state.input.skip(state.position.epoch);
  Stretch stretch(env, trainer);
  int64_t batches = 0, images = 0;
  do {
    images += state.input.skip(state.position.epoch);
    ++batches;
  } while (stretch.elapsed_s() < seconds && !should_stop());
  // The next steps read what comes after these batches: a second read would be from memory.
  state.position.batch = (state.position.batch + kSettle + batches) % state.input.epoch_steps();
  StepTiming timing = stretch.timing();
  timing.steps = batches;
  timing.samples = images;
  return timing;
}

Trial::Trial(Env& env, const Recipe& recipe, TrainerOptions options)
    : env_(env), should_stop_(options.should_stop), trainer_(env, recipe, std::move(options)) {}

double Trial::place() {
  const auto& state = MeasuredTrainer::state(trainer_);
  return double(state.position.batch) / epoch_steps();
}

void Trial::go_to(double place) {
  MeasuredTrainer::state(trainer_).position.batch = int64_t(place * epoch_steps());
}

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
  if (should_stop_()) return std::nullopt;
  if (turn == Turn::kInput) return time_input(env_, trainer_, seconds, should_stop_);
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

// The loader's threads begin with nothing ready. If input is the limit, steps take batches as they
// come, and find none ready; else the loader works ahead until it must wait. One long step is as
// much warm-up as two short ones.
bool Trial::is_settled(Turn turn, int steps, double elapsed_s) {
  if (steps < kSettle && (steps == 0 || elapsed_s < kLongStep)) return false;
  if (turn == Turn::kHeld) return true;
  const int ahead = recipe().data.prefetch,
            ready = int(MeasuredTrainer::state(trainer_).input.loader().ready());
  return steps >= ahead + kSettle || ready == 0 || ready >= ahead - 1;
}

}  // namespace saturate
