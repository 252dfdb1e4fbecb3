// When and what a run saves, and how it returns to its best weights.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "run/run_evaluation.h"

namespace saturate {

class Saver {
 public:
  // `snapshot` returns the run as it is now; collective.
  Saver(RunContext& run, Recorder& recorder, const RunEvaluation& evaluation,
        std::function<Checkpoint()> snapshot);

  // Fails with kRun if the disk has no room for two checkpoints of so many bytes. The first two
  // must fit: an older one is removed only after the next is written. REQUIRES: the run saves.
  void require_room(int64_t bytes) const;
  // After a resume from the checkpoint at `path`.
  void resumed_from(const std::string& path);
  // Before anything is written: returns the checkpoints that the run leaves, and adds the file that
  // says so to `files`.
  std::vector<std::string> begin_branch(std::vector<TextFile>& files);

  const std::string& resumed_from() const { return resumed_from_; }
  bool keeps_best() const { return options_.keep_best; }
  // Whether the checkpoint of the best weights of a resumed run, those of `step`, is there: in the
  // folder of the one that it resumed from. Collective.
  bool find_best(int64_t step);

  // The run has changed since its last checkpoint; note_best(): its weights are the best so far.
  void note_change() { unsaved_ = true; }
  void note_best();
  // Whether a save is due and has not begun; see Votes::save.
  bool is_waiting() const { return save_due_; }
  // Whether to save now. Rank 0 decides, since it has the clock and the disk. The ranks communicate
  // only if the position, or `voted` (Votes::save of the last step), says that a save may be due.
  bool vote(const RunPosition& position, bool voted);
  // Saves the run, which is at `step`. If an earlier save is still being written, this one is
  // postponed until after a later step, unless these are the best weights or `wait` is set.
  // Collective.
  void save(int64_t step, bool wait);
  // Reports the save in progress if it has ended.
  void poll();
  // Waits for the save in progress, and reports it. Not collective: for a run that fails.
  void settle();
  // The last checkpoint, whose failure is the run's. Collective.
  void save_last(int64_t step);

  // The checkpoint of the best weights, at that step; empty, with a warning, if rank 0 cannot read
  // it. Collective.
  std::optional<Checkpoint> read_best(int64_t best_step);
  // Its file.
  std::string best_path(int64_t best_step) const;
  const CheckpointStore& store() const { return store_; }
  // The last one written; empty: none.
  const std::string& last() const { return last_; }

 private:
  void report(const CheckpointWriter::Outcome& outcome);
  void settle_together();
  void work_together(bool works, const std::function<void()>& work);
  void retry_best();
  void adopt_best();

  RunContext& run_;
  Recorder& recorder_;
  const RunEvaluation& evaluation_;
  const std::function<Checkpoint()> snapshot_;
  const CheckpointOptions options_;  // with the best ones kept if the run restores these
  CheckpointStore store_;
  CheckpointWriter writer_;
  std::string resumed_from_;
  std::string found_best_;  // by find_best(), until there is a better one
  std::string last_;
  bool unsaved_ = true, save_due_ = false;
  bool best_unsaved_ = false;  // these weights are the best, and their save has not begun
  bool best_lost_ = false;     // it has failed, and the writer still holds them
  int64_t saved_ns_;
};

}  // namespace saturate
