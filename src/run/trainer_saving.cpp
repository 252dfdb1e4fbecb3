// When and what a run saves, and how it comes back to its best weights.
#include <fmt/format.h>

#include "run/trainer_state.h"
#include "saturate/progress.h"

namespace saturate {

bool Trainer::State::save_is_due() {
  const CheckpointOptions& when = recipe.checkpoint;
  return options.save && unsaved &&
         ((at_epoch_end() && is_multiple(position.epoch, when.every)) ||
          is_multiple(position.step, when.every_steps) ||
          (when.every_minutes > 0 && double(env.now_ns() - saved_ns) >= when.every_minutes * 60e9));
}

Checkpoint Trainer::State::snapshot() {
  record_steps();  // the steps since the last record, which a resumed run will not have seen
  position.time_s = log->time_s();
  Checkpoint checkpoint;
  checkpoint.position = position;
  checkpoint.epoch_metrics = epoch_metrics;
  checkpoint.evaluation = evaluation;
  checkpoint.best = stopping.state();
  checkpoint.recipe_toml = to_toml(recipe);
  checkpoint.classes = data->classes();
  checkpoint.image_size = recipe.augment.size;
  checkpoint.model = model_state(*model);
  checkpoint.optimizer = optimizer->state();
  checkpoint.scaler = step->scaler_state();
  checkpoint.schedule = schedule->state();
  if (average) checkpoint.average = average->state();
  if (lookahead) checkpoint.lookahead = lookahead->state();
  checkpoint.random = random_states();
  return checkpoint;
}

// A save that finds another one still being written is put off, to be tried again after the next
// step, unless these very weights are wanted.
void Trainer::State::save(bool wait) {
  if (!options.save) return;
  Ledger::Scope scope(ledger, Phase::kCheckpoint);
  if (writer.busy() && !best_unsaved && !wait) return;
  if (const auto outcome = writer.wait()) report(*outcome);
  Checkpoint now = snapshot();
  if (is_first()) writer.start(std::move(now));
  save_due = best_unsaved = unsaved = false;
  saved_ns = env.now_ns();
  if (!recipe.checkpoint.background && !wait)
    if (const auto outcome = writer.wait()) report(*outcome);
}

// A checkpoint that could not be written is no reason to lose the run that goes on.
void Trainer::State::report(const CheckpointWriter::Outcome& outcome) {
  if (!outcome.error) {
    result.checkpoint = outcome.path;
    log->note(
        fmt::format("          saved {} in {}", outcome.path, format_duration(outcome.seconds)));
    return;
  }
  unsaved = true;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const std::exception& error) {
    log->warn(fmt::format("step {} is not saved, the run goes on: {}", outcome.step, error.what()));
  }
}

// The end's checkpoint, whose failure is the run's.
void Trainer::State::save_last() {
  if (const auto outcome = writer.wait()) report(*outcome);
  if (first_says(unsaved)) save(/*wait=*/true);
  Ledger::Scope scope(ledger, Phase::kCheckpoint);
  const auto outcome = writer.wait();
  if (!outcome) return;
  if (outcome->error) std::rethrow_exception(outcome->error);
  report(*outcome);
}

void Trainer::State::restore_best() {
  const int64_t best_step = stopping.state().best_step;
  if (recipe.train.early_stop == 0 || !recipe.train.restore_best || best_step < 0 ||
      best_step == position.step)
    return;
  if (const auto outcome = writer.wait()) report(*outcome);
  const std::string path = store.path_of(best_step);
  if (!first_says(is_first() && env.exists(path))) {
    log->warn(
        fmt::format("the best weights, of step {}, were not saved: the last ones stay", best_step));
    return;
  }
  const Checkpoint best = read_checkpoint(env, path);
  load_into(*model, best.model, path);
  optimizer->load_state(best.optimizer);  // which may hold weights of its own
  if (average) average->load_state(best.average, path);
  if (lookahead) lookahead->load_state(best.lookahead, path);
  unsaved = true;
  evaluation.reset();
  if (best.evaluation && best.evaluation->step == best_step) evaluation = best.evaluation;
  if (!evaluation) evaluate_now();
  log->note(fmt::format("          restored the best weights, of step {}", best_step));
}

}  // namespace saturate
