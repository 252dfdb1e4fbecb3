// Trainer: a whole run from a recipe. Start reading here.
//
//   open data -> build model and optimizer -> (resume)
//   for each epoch:
//     for each batch: the step (train_step.h); every watch.every steps a "step" record
//     an "epoch" record, evaluation and an "eval" record, a checkpoint
//   an "end" record
//
// A run's folder holds recipe.toml (resolved), metrics.jsonl and checkpoints/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/ledger.h"
#include "saturate/loader.h"
#include "saturate/progress.h"
#include "saturate/train_step.h"

namespace saturate {

struct TrainerOptions {
  std::string out;  // the run's folder; created
  // A run folder or a checkpoint to go on from.
  std::optional<std::string> resume;
  // Polled between steps; true saves a checkpoint and ends the run early.
  std::function<bool()> should_stop = [] { return false; };
  Progress::Style progress = Progress::Style::kAuto;
};

struct TrainResult {
  bool stopped = false;    // ended early by should_stop
  int64_t steps = 0;       // in the whole run
  int64_t samples = 0;     // trained on by this process
  int64_t steps_here = 0;  // made by this process
  double wall_s = 0;       // of this process's part of the run, set-up included
  PhaseTimes phases;       // of the same; sums to wall_s
  double cores_used = 0;   // mean over the same: CPU seconds per second
  int64_t memory_peak_bytes = 0;
  std::optional<Metrics> train;  // over the last epoch
  std::optional<Metrics> eval;   // the last evaluation
  std::string checkpoint;        // the last one written
  size_t skipped_count = 0;
  std::vector<SkippedSample> skipped;
};

// Belongs to one thread. Everything that can be known to be wrong is found by the constructor,
// before any training time is spent; errors are of all kinds.
class Trainer {
 public:
  Trainer(Env& env, const Recipe& recipe, TrainerOptions options);
  ~Trainer();

  TrainResult run();
  // As run: every "auto" resolved.
  const Recipe& recipe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The closing summary: results, and where the time went, as aligned text.
std::string format_summary(const TrainResult& result);

}  // namespace saturate
