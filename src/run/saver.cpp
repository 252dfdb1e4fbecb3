#include "run/saver.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "run/long_work.h"
#include "run/staged_copy.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/progress.h"

namespace saturate {
namespace {

CheckpointOptions with_best_kept(const Recipe& recipe) {
  CheckpointOptions options = recipe.checkpoint;
  options.keep_best = options.keep_best || restores_best(recipe.train);
  return options;
}

}  // namespace

Saver::Saver(RunContext& run, Recorder& recorder, const RunEvaluation& evaluation,
             std::function<Checkpoint()> snapshot)
    : run_(run),
      recorder_(recorder),
      evaluation_(evaluation),
      snapshot_(std::move(snapshot)),
      options_(with_best_kept(run.recipe)),
      store_(run.env, run.options.out + "/checkpoints", options_, run.is_first()),
      writer_(run.env, store_, make_staged_copy(run.device)),
      saved_ns_(run.env.now_ns()) {}

void Saver::require_room(int64_t bytes) const {
  if (!run_.is_first()) return;
  const bool has_one = !resumed_from_.empty() && store_.holds(resumed_from_);
  const uint64_t needed = uint64_t(bytes) * (has_one ? 1 : 2);
  const std::string& folder = store_.folder();
  const uint64_t room = run_.env.free_bytes(folder);
  if (room >= needed) return;
  fail(ErrorKind::kRun,
       fmt::format("{} take{} {:.1f} MB, and {:.1f} MB are free",
                   has_one ? "the next checkpoint" : "two checkpoints", has_one ? "s" : "",
                   double(needed) * 1e-6, double(room) * 1e-6),
       folder, "Make room there, or choose another folder by --out");
}

void Saver::resumed_from(const std::string& path) {
  resumed_from_ = path;
  unsaved_ = !store_.holds(path);
}

std::vector<std::string> Saver::begin_branch(std::vector<TextFile>& files) {
  if (!run_.options.save || !run_.is_first()) return {};
  return store_.begin(resumed_from_, &files);
}

bool Saver::find_best(int64_t step) {
  found_best_.clear();
  try {
    if (run_.is_first()) found_best_ = store_.find_step(resumed_from_, step);
  } catch (const Error&) {  // then it counts as lost
  }
  if (run_.group) found_best_ = run_.group->text_of_first(found_best_);
  return !found_best_.empty();
}

void Saver::note_best() {
  best_unsaved_ = options_.keep_best && run_.options.save;
  best_lost_ = false;
  found_best_.clear();
}

bool Saver::vote(const RunPosition& position, bool voted) {
  const bool by_count = is_due_at(position, options_.every, options_.every_steps);
  save_due_ = save_due_ ||
              (run_.options.save && unsaved_ &&
               (by_count || (options_.every_minutes > 0 && double(run_.env.now_ns() - saved_ns_) >=
                                                               options_.every_minutes * 60e9)));
  const bool own = best_unsaved_ || save_due_;
  if (!run_.group) return own;
  const bool may_be_due = best_unsaved_ || voted || by_count;
  return may_be_due && run_.first_says(own && (best_unsaved_ || !writer_.busy()));
}

void Saver::save(int64_t step, bool wait) {
  if (!run_.options.save) return;
  Ledger::Scope scope(run_.ledger, Phase::kCheckpoint);
  if (writer_.busy() && !best_unsaved_ && !wait) return;
  settle_together();
  if (evaluation_.best().best_step != step) retry_best();
  adopt_best();
  Checkpoint now = snapshot_();
  save_due_ = best_unsaved_ = best_lost_ = unsaved_ = false;
  if (run_.is_first()) writer_.start(std::move(now));
  saved_ns_ = run_.env.now_ns();
  if (!options_.background && !wait) settle_together();
}

void Saver::poll() {
  if (const auto outcome = writer_.poll()) report(*outcome);
}

void Saver::settle() {
  if (const auto outcome = writer_.wait()) report(*outcome);
}

// Calls `work` on the ranks where `works` is set. It reads or writes whole checkpoints, which may
// take longer than the others may wait in one collective. Fails on a rank whose work fails.
// Collective.
void Saver::work_together(bool works, const std::function<void()>& work) {
  if (!run_.group) {
    if (works) work();
    return;
  }
  LongWork together(run_.group);
  if (works) work();
  Ledger::Scope scope(run_.ledger, Phase::kReduce);
  together.wait();
}

// Rank 0 writes, which may take longer than the others may wait in one collective.
void Saver::settle_together() {
  Ledger::Scope scope(run_.ledger, Phase::kCheckpoint);
  while (run_.group && run_.first_says(writer_.busy(kVoteEvery))) {
  }
  settle();
}

// The run continues without a checkpoint that cannot be written.
void Saver::report(const CheckpointWriter::Outcome& outcome) {
  const bool best = options_.keep_best && outcome.step == evaluation_.best().best_step;
  if (best) best_lost_ = bool(outcome.error);
  if (!outcome.error) {
    last_ = outcome.path;
    recorder_.log().note(
        fmt::format("          saved {} in {}", outcome.path, format_duration(outcome.seconds)));
    return;
  }
  unsaved_ = true;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const std::exception& error) {
    recorder_.log().warn(
        fmt::format("step {} is not saved, the run continues: {}", outcome.step, error.what()));
  }
}

void Saver::save_last(int64_t step) {
  settle_together();
  if (run_.first_says(unsaved_)) save(step, /*wait=*/true);
  Ledger::Scope scope(run_.ledger, Phase::kCheckpoint);
  const auto outcome = writer_.wait();
  if (!outcome) return;
  if (outcome->error) std::rethrow_exception(outcome->error);
  report(*outcome);
}

// Saves the best weights again if their save failed, before the writer receives others. Only rank 0
// knows whether it did.
void Saver::retry_best() {
  if (!run_.first_says(best_lost_)) return;
  if (run_.is_first()) writer_.restart();
  settle_together();
}

// Copies the best weights from the folder that the run resumed from: this folder then suffices.
void Saver::adopt_best() {
  if (found_best_.empty() || !options_.keep_best) return;
  std::string problem;
  work_together(run_.is_first(), [&] {
    try {
      if (!store_.holds(found_best_)) store_.save(read_checkpoint(run_.env, found_best_));
    } catch (const Error& error) {
      problem = error.what();
    }
  });
  if (!problem.empty())
    recorder_.log().warn(fmt::format(
        "the best weights are not copied from {}, the run continues: {}", found_best_, problem));
  if (run_.first_says(problem.empty())) found_best_.clear();
}

std::string Saver::best_path(int64_t best_step) const {
  return found_best_.empty() ? store_.path_of(best_step) : found_best_;
}

std::optional<Checkpoint> Saver::read_best(int64_t best_step) {
  settle_together();
  retry_best();
  const std::string path = best_path(best_step);
  Checkpoint best;
  std::string problem;
  work_together(run_.is_first(), [&] {
    try {
      best = path == store_.path_of(best_step) ? store_.read(best_step)
                                               : read_checkpoint(run_.env, path);
    } catch (const Error& error) {
      problem = fmt::format("{} ({})", error.reason(), error.where());
    }
  });
  if (!run_.first_says(problem.empty())) {
    if (run_.is_first())
      recorder_.log().warn(
          fmt::format("the best weights, of step {}, cannot be restored, the last ones stay: {}",
                      best_step, problem));
    return std::nullopt;
  }
  work_together(!run_.is_first(), [&] { best = read_checkpoint(run_.env, path); });
  return best;
}

}  // namespace saturate
