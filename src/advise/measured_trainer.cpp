#include "advise/measured_trainer.h"

#include "run/trainer_state.h"

namespace saturate {

void sum_gradients(Trainer& trainer, bool sums) {
  trainer.state().learner.reducer()->set_enabled(sums);
}

DeviceBatch hold_batch(Trainer& trainer) {
  Trainer::State& state = trainer.state();
  state.learner.set_switches();
  return state.input.hold(state.position.epoch);
}

void release_batch(Trainer& trainer) {
  Trainer::State& state = trainer.state();
  state.learner.set_switches();
  state.input.release(state.position);
}

int64_t skip_batch(Trainer& trainer) {
  Trainer::State& state = trainer.state();
  return state.input.skip(state.position.epoch);
}

double time_evaluation(Trainer& trainer, double seconds) {
  return trainer.state().evaluation.time(seconds);
}

double time_save(Trainer& trainer) {
  Trainer::State& state = trainer.state();
  const double begin = state.run.ledger.times()[Phase::kCheckpoint];
  state.saver.save(state.position.step, /*wait=*/false);
  return state.run.ledger.times()[Phase::kCheckpoint] - begin;
}

size_t ready_batches(Trainer& trainer) {
  return trainer.state().input.loader().ready();
}

void set_ledger(Trainer& trainer, bool enabled) {
  RunContext& run = trainer.state().run;
  run.ledger.set_enabled(enabled);
  if (run.streams) run.streams->set_enabled(enabled);
}

void rest(Trainer& trainer) {
  Trainer::State& state = trainer.state();
  state.input.feeder().stop();
  state.saver.settle();
}

}  // namespace saturate
