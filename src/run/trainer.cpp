#include "saturate/trainer.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

#include "base/cancel.h"
#include "run/batch_search.h"
#include "run/single_image.h"
#include "run/trainer_state.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Names the keys of an error that memory ran out, and of one that data.on_error=skip left one image
// in a batch.
template <class Body>
auto naming_options(const TrainOptions& train, const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (is_size_error(error))
      fail(ErrorKind::kRun, text.substr(0, text.find_first_of("\n.")),
           train.memory_gb > 0 ? "train.memory_gb" : "train.device",
           "Lower train.batch or set it to auto, raise train.accumulate, or set "
           "train.checkpoint_segments=auto");
    if (!is_single_value_error(error)) throw;
    fail(ErrorKind::kRun, "a micro-batch has one sample, which BatchNorm cannot train on",
         "train.batch",
         "Choose another train.batch, or repair the skipped samples that are named above");
  }
}

}  // namespace

// A resumed run begins with all that is still due, which may end it before its first step.
void Trainer::State::begin() {
  has_begun = true;
  learner.begin();
  if (run.streams) run.streams->skip_interval();
  run.ledger.time_on(device_phases.get());  // of the run, not of what came before it
  recorder.trace(position.step, /*ended_run=*/false);
  note_evaluation();  // the checkpoint's own, if it became the best when the best value was reset
  between_steps();
  if (!ended && position.step >= total_steps) ended = RunEnd::kDone;
}

// Data that was skipped may leave an epoch fewer steps than epoch_steps(), or none.
bool Trainer::State::make_step() {
  learner.set_switches();  // another trainer may have made a step since the last one
  if (!has_begun) begin();
  bool made = false;
  while (!ended && !made) {
    DeviceBatch batch;
    if ((made = next_batch(batch))) {
      train_batch(batch);
      // At the end of an epoch, or of the run, once the epoch is closed.
      if (position.batch < input.epoch_steps() && position.step < total_steps) between_steps();
    }
    const bool is_last = position.step >= total_steps;
    bool is_whole = !made || position.batch >= input.epoch_steps();
    // Asking for one more batch shows whether the rest of the epoch is skipped.
    if (!ended && is_last && !is_whole && run.recipe.data.on_error == OnError::kSkip)
      is_whole = !next_batch(batch);
    if (!ended && (is_whole || is_last)) end_epoch(is_whole);
  }
  return made;
}

// False if the epoch has no more.
bool Trainer::State::next_batch(DeviceBatch& batch) {
  if (!std::exchange(in_epoch, true)) {
    first_batch = position.batch;
    recorder.log().begin_epoch(position);
    input.begin_epoch(position);
  }
  if (position.batch >= input.epoch_steps()) return false;
  if (run.group) return input.feeder().next(batch);  // ranks make all steps together
  // A signal ends the run also while storage does not deliver.
  const CancelScope scope(run.options.should_stop);
  try {
    return input.feeder().next(batch);
  } catch (const Error&) {
    if (!run.options.should_stop()) throw;
    ended = RunEnd::kInterrupted;
    return false;
  }
}

void Trainer::State::train_batch(DeviceBatch& batch) {
  learner.set_rates(position.step);
  const auto compute = [&] {
    recorder.watch_step(batch, position, [&] { learner.run(batch, recorder.running()); });
  };
  if (run.group)
    step_together(compute);
  else
    compute();
  learner.update_averages(position.step, total_steps);
  Ledger::Scope host(run.ledger, Phase::kHost);
  const int64_t images = run.group ? batch.global_batch : batch.count();
  position.batch = input.place_after(batch, position);
  position.samples += images;
  result.samples += images;
  steps_made = ++position.step;
  final_weights = false;
  saver.note_change();
  recorder.after_step(position);
}

// A step of all ranks. Their vote begins before it and ends after it.
void Trainer::State::step_together(const std::function<void()>& compute) {
  std::function<Votes()> vote;
  {
    Ledger::Scope scope(run.ledger, Phase::kReduce);
    learner.exchange_buffers();
    vote = run.start_vote(votes());
  }
  compute();
  Ledger::Scope scope(run.ledger, Phase::kReduce);
  last_votes = vote();
  learner.keep_buffers(last_votes.buffers);
}

Votes Trainer::State::votes() {
  const double minutes = double(run.env.now_ns() - begin_ns) / 60e9;
  const double most = run.recipe.train.max_minutes;
  Votes own;
  own.stop = run.options.should_stop();
  own.observer = recorder.log().observers().stop_reason().has_value();
  own.time_is_up = most > 0 && minutes >= most;
  own.save = run.group && run.is_first() && saver.is_waiting();
  own.buffers = learner.has_written_buffers();
  return own;
}

// `is_whole`: not cut short by the end of the run.
void Trainer::State::end_epoch(bool is_whole) {
  input.feeder().stop();
  in_epoch = false;
  recorder.warn_of_skipped();
  if (is_whole) {
    ++position.epoch;
    position.batch = 0;
    saver.note_change();
  }
  learner.end_epoch(position.step, total_steps);
  if (const auto metrics = recorder.close_epoch(position)) {
    result.train = metrics;
    note_evaluation();
  } else if (is_whole && first_batch == 0) {
    input.fail_all_skipped();  // the next epoch would be no better
  }
  between_steps();
  if (!ended && position.step >= total_steps) ended = RunEnd::kDone;
}

// Everything due after a step or an epoch. Due dates depend on the position alone, so that a
// resumed run does all that was due when the run was interrupted. A complete run has done it, and
// its final weights may be those of another step.
void Trainer::State::between_steps() {
  if (!final_weights && evaluation.is_due(position)) evaluate();
  saver.poll();
  if (saver.vote(position, last_votes.save)) saver.save(position.step, /*wait=*/false);
  note_end();
}

// A loss that is not finite fails the run before its weights are evaluated, also if no record is
// due: otherwise the evaluation would end it early, with other weights.
void Trainer::State::evaluate(bool counts) {
  if (evaluation.exists() && !evaluation.is_done_at(position.step)) {
    Ledger::Scope host(run.ledger, Phase::kHost);
    recorder.read_metrics(position);
  }
  if (!evaluation.run(position, counts)) last_votes.stop = true;
  note_evaluation();
}

// A checkpoint is to hold the results of an evaluation, or an epoch.
void Trainer::State::note_evaluation() {
  WatchedMetric& watched = evaluation.watched();
  if (evaluation.take_changed()) saver.note_change();
  if (watched.take_changed()) saver.note_change();
  if (watched.take_new_best()) saver.note_best();
}

void Trainer::State::note_end() {
  const Votes now = run.group ? last_votes : votes();
  if (now.stop)
    ended = RunEnd::kInterrupted;
  else if (evaluation.watched().should_stop())
    ended = RunEnd::kEarlyStop;
  else if (now.observer && position.step < total_steps)
    ended = RunEnd::kStopped;
  else if (now.time_is_up && position.step < total_steps)
    ended = RunEnd::kTimeLimit;
}

// The last evaluation, and the weights to end with, of a run that was not interrupted.
void Trainer::State::end_training() {
  const auto is_at_its_end = [&] { return ended == RunEnd::kDone || ended == RunEnd::kEarlyStop; };
  evaluate(/*counts=*/is_at_its_end());
  if (run.any(run.options.should_stop())) ended = RunEnd::kInterrupted;  // maybe in that one
  // A run that can be resumed keeps its last weights.
  if (is_at_its_end()) {
    restore_best();
    // The best weights' evaluation was cancelled.
    if (evaluation.exists() && !evaluation.last()) ended = RunEnd::kInterrupted;
  }
  if (is_at_its_end()) {
    if (!is_finished()) saver.note_change();
    final_weights = true;
  }
}

void Trainer::State::finish() {
  // Interrupted while a read hangs, the loader may not stop: then the run is saved first.
  const bool was_interrupted = ended == RunEnd::kInterrupted;
  if (!was_interrupted) input.feeder().stop();
  recorder.trace(position.step, /*ended_run=*/true);
  if (ended == RunEnd::kDone) recorder.require_trained(position);
  if (!was_interrupted) end_training();
  recorder.record_steps(position);
  saver.save_last(position.step);
  recorder.log().end({position, *ended, evaluation.last()});
  if (ended == RunEnd::kInterrupted) {
    input.feeder().stop();
    evaluation.stop();
  }
  learner.keep_average();

  result.end = *ended;
  if (ended == RunEnd::kStopped)
    result.stopped_by =
        recorder.log().observers().stop_reason().value_or("an observer of another rank");
  result.checkpoint = saver.last();
  if (result.checkpoint.empty() && run.options.save)
    result.checkpoint = saver.store().path_of(position.step);
  result.skipped_count = input.loader().skipped_count();
  result.skipped = input.loader().skipped();
  so_far();
  recorder.close();
}

// Whether there is nothing left to do: no step, no evaluation, no best weights to restore.
bool Trainer::State::is_finished() const {
  const int64_t step = position.step;
  if (step < total_steps && !evaluation.watched().should_stop()) return false;
  return final_weights || ((!evaluation.exists() || evaluation.is_done_at(step)) &&
                           !evaluation.best_to_restore(step));
}

void Trainer::State::restore_best() {
  const auto best_step = evaluation.best_to_restore(position.step);
  if (!best_step) return;
  auto best = saver.read_best(*best_step);
  if (!best) return;
  StateVisitor visitor(StateVisitor::Purpose::kRestoreBest, *best, saver.best_path(*best_step));
  visit(visitor);
  saver.note_change();
  if (!evaluation.last()) evaluate(/*counts=*/false);
  recorder.log().note(fmt::format("          restored the best weights, of step {}", *best_step));
}

// Every component's state. Collective if it is saved.
void Trainer::State::visit(StateVisitor& visitor) {
  visitor.value(&Checkpoint::position, position);
  visitor.value(&Checkpoint::final_weights, final_weights);
  learner.visit(visitor);
  recorder.visit(visitor);
  evaluation.visit(visitor);
}

Checkpoint Trainer::State::snapshot() {
  // The steps since the last record, which a resumed run will not have seen.
  recorder.record_steps(position);
  position.time_s = recorder.log().time_s();
  Checkpoint checkpoint;
  checkpoint.recipe_toml = to_toml(run.recipe);
  checkpoint.classes = input.class_names();
  checkpoint.image_size = run.recipe.augment.size;
  checkpoint.fields = batch_fields(input.data(), run.recipe.augment);
  checkpoint.images = int64_t(input.data().size());
  checkpoint.eval_images = evaluation.images();
  checkpoint.objects = input.objects();
  StateVisitor visitor(StateVisitor::Purpose::kSave, checkpoint);
  visit(visitor);
  return checkpoint;
}

TrainResult Trainer::State::so_far() {
  if (evaluation.last()) result.eval = evaluation.last()->metrics;
  result.best = evaluation.best();
  if (!input.data().tensors().empty()) result.unit = "samples";
  result.phases = run.ledger.times();
  result.steps = position.step;
  result.steps_here = position.step - resumed.step;
  result.wall_s = result.phases.total();
  result.cores_used = (cpu_seconds() - cpu_begin) / result.wall_s;
  result.memory_peak_bytes = memory_peak_bytes();
  if (run.streams) result.streams = run.streams->times();
  result.device_phases = run.ledger.device_times();
  result.graph = learner.graph_line();
  if (!saver.last().empty()) result.checkpoint = saver.last();
  recorder.fill(result);
  return result;
}

bool Trainer::State::step_or_finish() {
  if (is_over) return false;
  is_over = true;  // unless a step is made
  if (result.was_finished) {
    result.end = position.step >= total_steps ? RunEnd::kDone : RunEnd::kEarlyStop;
    result.checkpoint = resumed_from;
    learner.keep_average();
    so_far();
    return false;
  }
  try {
    if (make_step())
      is_over = false;
    else
      finish();
  } catch (...) {
    result.end = RunEnd::kFailed;
    saver.settle();
    recorder.fill(result);
    recorder.close();  // ends its line
    throw;
  }
  return !is_over;
}

Trainer::Trainer(Env& env, const Recipe& recipe, TrainerOptions options)
    : state_(naming_options(
          recipe.train, [&] { return std::make_unique<State>(env, recipe, std::move(options)); })) {
}
Trainer::~Trainer() = default;
bool Trainer::step() {
  return naming_options(state_->run.recipe.train, [&] { return state_->step_or_finish(); });
}
TrainResult Trainer::run() {
  while (step()) {
  }
  return state_->result;
}
Model& Trainer::model() {
  return state_->learner.model();
}
const Recipe& Trainer::recipe() const {
  return state_->run.recipe;
}

TrainResult Trainer::so_far() {
  return state_->so_far();
}

}  // namespace saturate
