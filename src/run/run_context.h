// Shared by the parts of a run: where it runs, its recipe, and the other processes.
#pragma once

#include <memory>

#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/memory.h"
#include "saturate/trainer.h"
#include "trace/stream_clock.h"

namespace saturate {

// Whether what happens after every so many (0: never) is due.
inline bool is_multiple(int64_t count, int64_t every) {
  return every > 0 && count > 0 && count % every == 0;
}

// Belongs to the trainer's thread, as do all parts.
struct RunContext {
  // Creates and locks the folder, and refuses what the machine lacks.
  RunContext(Env& env, TrainerOptions options, const Recipe& asked);

  bool is_first() const;
  // This process's share of each batch.
  Shard shard() const;
  // Whether any process says so. Collective, as the next.
  bool any(bool own);
  // Rank 0's answer.
  bool first_says(bool own);

  Env& env;
  const TrainerOptions options;
  Group* const group;                    // options.group
  const std::unique_ptr<FileLock> lock;  // on the folder, rank 0's
  const at::Device device;
  TensorMemory& memory;
  const MemoryBudget budget;
  Ledger ledger;
  const std::unique_ptr<StreamClock> streams;  // null on a CPU
  Recipe recipe;  // as asked for, naming objects; then as RunInput resolves it
};

}  // namespace saturate
