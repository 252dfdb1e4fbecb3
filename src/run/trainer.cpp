#include "saturate/trainer.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>
#include <utility>

#include "run/single_image.h"
#include "run/trainer_state.h"
#include "saturate/error.h"
#include "saturate/gradients.h"

namespace saturate {

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + time.tv_usec * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

namespace {

// The loss scale below which a run in fp16 is given up: fp16's smallest normal number, 2^-14. From
// precision.initial_scale's default some thirty steps lead there that overflow in a row.
constexpr double kLeastScale = 1.0 / 16384;
// So many in a row, a whole epoch among them, do as well: a run may be too short for that.
constexpr int64_t kMostOverflows = 8;

std::string where_non_finite(Model& model) {
  const std::string name = first_non_finite(model);
  return name.empty() ? "" : ", nor is " + name;
}

}  // namespace

void Trainer::State::read_metrics() {
  const Metrics part = over_ranks(running.read());
  if (part.samples > part.overflowed && !std::isfinite(part.loss)) fail_not_finite();
  if (part.overflowed > 0 && !std::exchange(warned_overflow, true))
    log->warn(
        fmt::format("the loss overflows in fp16 by step {}: such steps are left out, and the loss "
                    "scale halves",
                    position.step));
  if (part.samples > part.overflowed) sound_step = position.step;
  if (step->loss_scale().value_or(1) < kLeastScale) fail_overflow();
  unrecorded.merge(part);
}

void Trainer::State::fail_overflow() {
  fail(ErrorKind::kRun,
       fmt::format("fp16 overflows step after step by step {}: the loss scale has fallen to {:.2g}",
                   position.step, step->loss_scale().value_or(0)),
       options.out,
       "Set precision.mode to bf16 or fp32, lower optimizer.lr, or set train.clip_norm=1");
}

// The first loss was computed with the weights that the run began with, which are finite.
void Trainer::State::fail_not_finite() {
  const bool first = position.step == resumed.step + 1;
  fail(ErrorKind::kRun,
       first ? "the loss is not finite before any step changed a weight"
             : fmt::format("the loss is not finite by step {}{}", position.step,
                           where_non_finite(*model)),
       options.out,
       first ? "Look at augment.mean and augment.std, the images, and the model and its loss"
             : "Lower optimizer.lr or lengthen schedule.warmup_epochs");
}

void Trainer::State::record_steps() {
  read_metrics();
  const Metrics part = std::exchange(unrecorded, {});
  if (part.samples == 0) return;
  epoch_metrics.merge(part);
  log->steps(position, part, lr);
}

void Trainer::State::train_batch(DeviceBatch& batch) {
  lr = recipe.optimizer.lr * schedule->factor(position.step);
  if (const auto momentum = schedule->momentum(position.step)) optimizer->set_momentum(*momentum);
  if (group)
    step_together(batch);
  else
    run_step(batch);
  if (lookahead || average) {
    Ledger::Scope scope(ledger, Phase::kOptimizer);
    if (lookahead) lookahead->update(position.step + 1, total_steps);
    if (average) average->update();
  }
  Ledger::Scope host(ledger, Phase::kHost);
  steps_made = ++position.step;
  final_weights = false;
  // Where the loader would go on: past what it left out. A batch that is held stays where it is.
  position.batch = feeder.holds() ? position.batch + 1 : batch.place + 1;
  position.samples += group ? batch.whole : batch.count();
  result.samples += group ? batch.whole : batch.count();
  unsaved = true;
  if (!recipe.train.late_metrics) read_metrics();
  if (position.step % recipe.watch.every == 0) record_steps();
  log->show(position);
  if (step->first_uncompiled() > 0 && !std::exchange(warned_uncompiled, true))
    log->warn(
        fmt::format("a batch (or part of one) of {} images does not fit the compiled step, "
                    "and takes the way without it, as others will",
                    step->first_uncompiled()));
  if (graphed && !graphed->given_up().empty() && !std::exchange(warned_ungraphed, true))
    log->warn("train.graph: the steps run as they are from here on: " + graphed->given_up());
  if (loader.skipped_count() != warned_train) log->warn_of_skipped(loader.skipped(), warned_train);
  trace(/*ended_run=*/false);
}

// What a resumed run still owes may end it before its first step.
void Trainer::State::begin() {
  has_begun = true;
  model->set_training(true);
  if (lookahead) lookahead->begin();
  if (streams) streams->leave_out();
  ledger.time_on(device_phases.get());  // of the run, not of what came before it
  trace(/*ended_run=*/false);
  between_steps();
  if (!ended && position.step >= total_steps) ended = RunEnd::kDone;
}

// False where the epoch has no more.
bool Trainer::State::next_batch(DeviceBatch& batch) {
  if (!std::exchange(in_epoch, true)) {
    log->begin_epoch(position);
    if (!feeder.holds()) feeder.start_epoch(uint32_t(position.epoch), size_t(position.batch));
  }
  return position.batch < epoch_steps && feeder.next(batch);
}

// Data that was skipped may leave an epoch fewer steps than epoch_steps, or none.
bool Trainer::State::make_step() {
  if (!has_begun) begin();
  bool made = false;
  while (!ended && !made) {
    DeviceBatch batch;
    if ((made = next_batch(batch))) {
      train_batch(batch);
      if (position.batch < epoch_steps) between_steps();  // else once the epoch is closed
    }
    const bool is_whole = !made || position.batch >= epoch_steps;
    if (!ended && (is_whole || position.step >= total_steps)) end_epoch(is_whole);
  }
  return made;
}

// `is_whole`: not cut short by the end of the run.
void Trainer::State::end_epoch(bool is_whole) {
  feeder.stop();
  in_epoch = false;
  if (is_whole) {
    ++position.epoch;
    position.batch = 0;
    unsaved = true;
  }
  close_epoch();
  between_steps();
  if (!ended && position.step >= total_steps) ended = RunEnd::kDone;
}

void Trainer::State::close_epoch() {
  Ledger::Scope host(ledger, Phase::kHost);
  record_steps();
  if (epoch_metrics.samples == 0) return;
  if (epoch_metrics.overflowed == epoch_metrics.samples &&
      position.step - sound_step >= kMostOverflows)
    fail_overflow();
  log->epoch(position, epoch_metrics, lr);
  result.train = epoch_metrics;
  if (is_training_metric(recipe.train.monitor)) observe(epoch_metrics);
  epoch_metrics = {};
}

// What is due after a step or an epoch. Whether it is depends on the position alone, so that a
// resumed run catches up on what an interrupted one still owed.
void Trainer::State::between_steps() {
  const bool evaluation_due =
      (at_epoch_end() && is_multiple(position.epoch, recipe.train.eval_every)) ||
      is_multiple(position.step, recipe.train.eval_every_steps);
  if (evaluation_due) evaluate_now();
  if (const auto outcome = writer.poll()) report(*outcome);
  save_due = save_due || save_is_due();
  if (agree_to_save()) save(/*wait=*/false);
  note_end();
}

void Trainer::State::note_end() {
  const Votes now = group ? agreed : votes();
  if (now.stop)
    ended = RunEnd::kInterrupted;
  else if (stopping.should_stop())
    ended = RunEnd::kEarlyStop;
  else if (now.time_is_up && position.step < total_steps)
    ended = RunEnd::kTimeLimit;
}

void Trainer::State::finish() {
  feeder.stop();
  trace(/*ended_run=*/true);
  if (ended != RunEnd::kInterrupted) evaluate_now(/*counts=*/ended != RunEnd::kTimeLimit);
  if (any(options.should_stop())) ended = RunEnd::kInterrupted;  // maybe in that evaluation
  // A run that will go on keeps the weights it has come to.
  if (ended == RunEnd::kDone || ended == RunEnd::kEarlyStop) {
    restore_best();
    if (evaluator && !evaluation) ended = RunEnd::kInterrupted;  // in the best weights' evaluation
  }
  if (ended == RunEnd::kDone || ended == RunEnd::kEarlyStop) {
    unsaved = unsaved || !is_finished();
    final_weights = true;
  }
  record_steps();
  save_last();
  log->end(position, evaluation);

  result.end = *ended;
  if (result.checkpoint.empty() && options.save) result.checkpoint = store.path_of(position.step);
  result.skipped_count = loader.skipped_count();
  result.skipped = loader.skipped();
  so_far();
  log.reset();
}

TrainResult Trainer::State::so_far() {
  if (evaluation) result.eval = evaluation->metrics;
  result.best = stopping.state();
  result.phases = ledger.times();
  result.steps = position.step;
  result.steps_here = position.step - resumed.step;
  result.wall_s = result.phases.total();
  result.cores_used = (cpu_seconds() - cpu_begin) / result.wall_s;
  result.memory_peak_bytes = memory_peak_bytes();
  if (log) result.tensor_peaks = log->tensor_peaks();
  if (streams) result.streams = streams->times();
  result.device_phases = ledger.device_times();
  result.graph = graph_line();
  if (telemetry) result.telemetry = telemetry->whole();
  return result;
}

bool Trainer::State::step_or_finish() {
  if (is_over) return false;
  is_over = true;  // unless a step is made
  if (result.was_finished) {
    result.end = position.step >= total_steps ? RunEnd::kDone : RunEnd::kEarlyStop;
    result.checkpoint = resumed_from;
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
    if (const auto outcome = writer.wait()) report(*outcome);
    result.tensor_peaks = log->tensor_peaks();
    log.reset();  // ends its line
    throw;
  }
  return !is_over;
}

namespace {

// Tells a user of memory that ran out, and of a batch that data.on_error=skip left one image of.
template <class Body>
auto naming_options(const TrainOptions& train, const Body& body) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    fail(ErrorKind::kRun, text.substr(0, text.find_first_of("\n.")),
         train.memory_gb > 0 ? "train.memory_gb" : "train.device",
         "Lower train.batch or set it to auto, raise train.accumulate, or set "
         "train.checkpoint_segments=auto");
  } catch (const c10::Error& error) {
    if (!is_single_value_error(error.what_without_backtrace())) throw;
    fail(ErrorKind::kRun, "a part of a batch has one image, which BatchNorm cannot train on",
         "train.batch", "Choose another train.batch, or see to the samples that were left out");
  }
}

}  // namespace

Trainer::Trainer(Env& env, const Recipe& recipe, TrainerOptions options)
    : state_(naming_options(
          recipe.train, [&] { return std::make_unique<State>(env, recipe, std::move(options)); })) {
}
Trainer::~Trainer() = default;
bool Trainer::step() {
  return naming_options(state_->recipe.train, [&] { return state_->step_or_finish(); });
}
TrainResult Trainer::run() {
  while (step()) {
  }
  return state_->result;
}
const Recipe& Trainer::recipe() const {
  return state_->recipe;
}

TrainResult Trainer::so_far() {
  return state_->so_far();
}

void Trainer::sum_gradients(bool sums) {
  state_->reducer->set_enabled(sums);
}

DeviceBatch Trainer::hold_batch() {
  state_->set_switches();
  DeviceBatch first;
  state_->feeder.start_epoch(uint32_t(state_->position.epoch));
  state_->feeder.next(first);
  state_->feeder.finish(first);  // which changes what it is made of, and so happens once
  state_->feeder.stop();
  state_->feeder.hold(first);
  return first;
}

void Trainer::release_batch() {
  state_->set_switches();
  state_->feeder.release();
  state_->feeder.start_epoch(uint32_t(state_->position.epoch), size_t(state_->position.batch));
}

int64_t Trainer::skip_batch() {
  DeviceBatch batch;
  if (!state_->feeder.next(batch)) {
    state_->feeder.start_epoch(uint32_t(state_->position.epoch));
    state_->feeder.next(batch);
  }
  return batch.count();
}

double Trainer::time_evaluation(double seconds) {
  return state_->time_evaluation(seconds);
}

double Trainer::time_save() {
  const double begin = state_->ledger.times()[Phase::kCheckpoint];
  state_->save(/*wait=*/false);
  return state_->ledger.times()[Phase::kCheckpoint] - begin;
}

size_t Trainer::ready_batches() const {
  return state_->loader.ready();
}

void Trainer::set_ledger(bool enabled) {
  state_->ledger.set_enabled(enabled);
  if (state_->streams) state_->streams->set_enabled(enabled);
}

void Trainer::rest() {
  state_->feeder.stop();
  if (const auto outcome = state_->writer.wait()) state_->report(*outcome);
}

}  // namespace saturate
