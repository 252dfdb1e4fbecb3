// Changes to a run that only measure it. Several trainers can take turns on a thread: all but
// one rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "saturate/data/recipe.h"
#include "saturate/feed.h"
#include "saturate/trainer.h"

namespace saturate {

// Only of runs of several processes: false leaves out the sums of gradients from the next step on,
// which then trains each process by itself. All say it before the same step.
void sum_gradients(Trainer& trainer, bool sums);

// The following only of runs of one process, but for release_batch() and rest().

// From now on every step is on the same batch, the first of this epoch's order, which is returned;
// the loader rests. What a run costs without its input.
DeviceBatch hold_batch(Trainer& trainer);
// Goes on with the epoch's next batch.
void release_batch(Trainer& trainer);
// Takes the next batch from the loader for no step to see, of this epoch over and over: what input
// costs without a step. Returns its images. REQUIRES: no batch is held.
int64_t skip_batch(Trainer& trainer);
// Evaluates for `seconds` at most, a batch at least, for the time that it takes alone: nothing is
// recorded or decided by it. Returns what the run's whole evaluation takes, in seconds: one that
// was cut short counts as much longer as it has more images. 0 without data.eval_source.
double time_evaluation(Trainer& trainer, double seconds);
// Saves a checkpoint as when one is due, and returns for how many seconds the run waits for it.
double time_save(Trainer& trainer);
// Batches that the loader has ready.
size_t ready_batches(Trainer& trainer);
// Whether the ledger charges phases (as it does from the start) or not, to measure its own cost.
void set_ledger(Trainer& trainer, bool enabled);
// Stops the loader and waits for a checkpoint being written: the run uses nothing but memory until
// hold_batch() or release_batch(), which set the process's switches for it again.
void rest(Trainer& trainer);

// Without what happens between steps, without an end before the measurements', and with weights
// that stay as they are: no measurement meets other numbers than the one before.
inline Recipe measured_recipe(Recipe recipe) {
  recipe.data.eval_source.clear();
  recipe.optimizer.lr = 0;
  recipe.train.epochs = std::max(recipe.train.epochs, 1e6);
  recipe.train.max_minutes = 0;
  recipe.train.early_stop = 0;
  recipe.watch.progress = false;
  recipe.watch.prometheus_port = 0;  // which the next run may want
  recipe.watch.trace.clear();
  recipe.watch.samples = recipe.watch.histograms = 0;
  return recipe;
}

}  // namespace saturate
