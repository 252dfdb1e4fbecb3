// When and what a run saves, and how it comes back to its best weights.
#include <fmt/format.h>

#include "run/trainer_state.h"
#include "run/training_parts.h"
#include "saturate/error.h"
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
  checkpoint.final_weights = final_weights;
  checkpoint.epoch_metrics = epoch_metrics;
  checkpoint.evaluation = evaluation;
  checkpoint.best = stopping.state();
  checkpoint.recipe_toml = to_toml(recipe);
  checkpoint.classes = data->classes();
  checkpoint.image_size = recipe.augment.size;
  checkpoint.images = int64_t(data->size());
  checkpoint.eval_images = evaluator ? int64_t(evaluator->size()) : 0;
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
  retry_best();
  Checkpoint now = snapshot();
  save_due = best_unsaved = best_lost = unsaved = false;
  if (is_first()) writer.start(std::move(now));
  saved_ns = env.now_ns();
  if (!recipe.checkpoint.background && !wait)
    if (const auto outcome = writer.wait()) report(*outcome);
}

// A checkpoint that could not be written is no reason to lose the run that goes on.
void Trainer::State::report(const CheckpointWriter::Outcome& outcome) {
  const bool best = recipe.checkpoint.keep_best && outcome.step == stopping.state().best_step;
  if (best) best_lost = bool(outcome.error);
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

// Once more the best weights, whose save failed, before the writer is given others.
void Trainer::State::retry_best() {
  if (!best_lost || stopping.state().best_step == position.step) return;
  Ledger::Scope scope(ledger, Phase::kCheckpoint);
  writer.start_again();
  report(*writer.wait());
}

std::optional<int64_t> Trainer::State::best_to_restore() const {
  const int64_t best_step = stopping.state().best_step;
  if (recipe.train.early_stop == 0 || !recipe.train.restore_best || best_step < 0 ||
      best_step == position.step)
    return std::nullopt;
  return best_step;
}

// Whether there is nothing left to do: no step, no evaluation, no way back to the best weights.
bool Trainer::State::is_finished() const {
  if (position.step < total_steps && !stopping.should_stop()) return false;
  return final_weights || ((!evaluator || evaluated_step() == position.step) && !best_to_restore());
}

void Trainer::State::restore_best() {
  const auto best_step = best_to_restore();
  if (!best_step) return;
  if (const auto outcome = writer.wait()) report(*outcome);
  retry_best();
  Checkpoint best;
  std::string problem;
  try {
    if (is_first()) best = store.read(*best_step);
  } catch (const Error& error) {
    problem = fmt::format("{} ({})", error.reason(), error.where());
  }
  if (!first_says(problem.empty())) {
    if (is_first())
      log->warn(
          fmt::format("the best weights, of step {}, cannot be restored, the last ones stay: {}",
                      *best_step, problem));
    return;
  }
  const std::string path = store.path_of(*best_step);
  if (!is_first()) best = read_checkpoint(env, path);
  load_into(*model, best.model, path);
  optimizer->load_state(best.optimizer);  // which may hold weights of its own
  if (average) average->load_state(best.average, path);
  if (lookahead) lookahead->load_state(best.lookahead, path);
  unsaved = true;
  evaluation.reset();
  if (best.evaluation && best.evaluation->step == *best_step) evaluation = best.evaluation;
  if (!evaluation) evaluate_now(/*counts=*/false);
  log->note(fmt::format("          restored the best weights, of step {}", *best_step));
}

// A full disk is better found now than after the first epoch. The first two must fit: an older one
// goes only when the next is there.
void Trainer::State::require_room() {
  if (!options.save) return;
  const int64_t bytes =
      checkpoint_bytes(*model, *optimizer, average != nullptr, lookahead != nullptr);
  if (!is_first()) return;
  const bool has_one = !resumed_from.empty() && store.holds(resumed_from);
  const uint64_t needed = uint64_t(bytes) * (has_one ? 1 : 2);
  const std::string folder = options.out + "/checkpoints";
  const uint64_t room = env.free_bytes(folder);
  if (room >= needed) return;
  fail(ErrorKind::kRun,
       fmt::format("{} take{} {:.1f} MB, and {:.1f} MB are free",
                   has_one ? "the next checkpoint" : "two checkpoints", has_one ? "s" : "",
                   double(needed) * 1e-6, double(room) * 1e-6),
       folder, "Make room there, or choose another folder by --out");
}

}  // namespace saturate
