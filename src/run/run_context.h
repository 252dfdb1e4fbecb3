// Shared by the components of a run: where it runs, its recipe, and the other ranks.
#pragma once

#include <functional>
#include <memory>

#include "run/made_folder.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/memory.h"
#include "saturate/trainer.h"
#include "trace/stream_clock.h"

namespace saturate {

// Whether an event that happens after every `every` counts (0: never) is due.
inline bool is_multiple(int64_t count, int64_t every) {
  return every > 0 && count > 0 && count % every == 0;
}

// The same for one that happens after every `epochs` epochs, and after every `steps` steps.
inline bool is_due_at(const RunPosition& position, int64_t epochs, int64_t steps) {
  return (position.batch == 0 && is_multiple(position.epoch, epochs)) ||
         is_multiple(position.step, steps);
}

// Whether a run ends with its best weights, which it must therefore keep.
inline bool restores_best(const TrainOptions& train) {
  return train.early_stop > 0 && train.restore_best;
}

// A rank's votes after a step. The result of a vote: whether any rank says so.
struct Votes {
  bool stop = false;        // a signal came
  bool observer = false;    // ObserverContext::stop()
  bool time_is_up = false;  // train.max_minutes
  bool save = false;        // rank 0 only: a save is due by its clock, or was postponed
  bool buffers = false;     // its steps write to buffers: see RankBuffers
};

// Belongs to the trainer's thread, as do all components.
struct RunContext {
  // Creates and locks the folder. Fails with kUsage if the machine lacks a device of the recipe,
  // and if a setting needs a name where the program gives its own object.
  RunContext(Env& env, TrainerOptions options, const Recipe& asked);

  bool is_first() const;
  // This rank's images of each batch.
  Shard shard() const;
  // Whether any rank says so. Collective, as are the next two.
  bool any(bool own);
  // Rank 0's answer.
  bool first_says(bool own);
  // Starts a vote; the function that is returned waits for its result. REQUIRES: a group.
  std::function<Votes()> start_vote(const Votes& own);

  Env& env;
  const TrainerOptions options;
  Group* const group;                        // options.group
  const std::unique_ptr<MadeFolder> folder;  // rank 0's, as the lock
  const std::unique_ptr<FileLock> lock;      // on the folder
  const at::Device device;
  TensorMemory& memory;
  const MemoryBudget budget;
  Ledger ledger;
  const std::unique_ptr<StreamClock> streams;  // null on a CPU
  // As asked for, with "own" as the name of each object that the program gives (but a source that
  // the recipe names keeps its name); then as RunInput resolves it.
  Recipe recipe;
};

}  // namespace saturate
