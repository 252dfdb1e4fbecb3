// SPDX-License-Identifier: BSD-3-Clause
// Trainer: a whole run from a recipe. Start reading here.
//
//   lock the folder -> open data -> (find the batch) -> build model and optimizer -> (resume)
//   (if the resumed run had ended: stop here)
//   for each epoch:
//     for each batch: the step (train_step.h), the weights' average; a "step" record if due
//     an "epoch" record
//   after each step and each epoch, if due: evaluation and an "eval" record, a checkpoint
//     (written in the background), early stopping
//   (restore the best weights), the last checkpoint, an "end" record
//
// Observers (observer.h) are called after each step, epoch, evaluation, record and the end.
//
// Several processes can train together (group.h): each step is collective and splits one global
// batch; decisions from a clock, a signal or a loss are votes, so that all ranks decide alike. Only
// rank 0 writes the folder; on a resume all ranks read it.
//
// A run's folder holds recipe.toml (resolved), host.json, metrics.jsonl, tb/ (TensorBoard),
// samples/ and checkpoints/; trace.json and trace.txt if requested.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "saturate/data/recipe.h"
#include "saturate/early_stopping.h"
#include "saturate/ledger.h"
#include "saturate/metrics.h"
#include "saturate/observer.h"
#include "saturate/progress.h"

namespace saturate {

class Dataset;
class Group;
class Model;
class Optimizer;
class StepGraph;
class Task;
struct ParameterGroup;

struct TrainerOptions {
  // The processes that train together; null: only this process. All have the same `out`, `resume`
  // and `save`, and the same recipe except threads and the device.
  std::shared_ptr<Group> group;
  // The run's folder; created. Without `resume`, the records of an earlier run in it are replaced.
  std::string out;
  // A run folder or a checkpoint to resume from.
  std::optional<std::string> resume;
  // Whether a resumed run may continue with a different number of training images, different names
  // of as many classes, or objects of a store that were replaced; its epoch continues at the same
  // batch of the new order.
  bool changed_data = false;
  // Polled between steps and evaluation batches; true saves a checkpoint and ends the run early.
  std::function<bool()> should_stop = [] { return false; };
  Progress::Style progress = Progress::Style::kAuto;
  bool save = true;  // false: no checkpoint is written, such as in a measurement

  // Objects in place of what the recipe names. An object wins: model.name, optimizer.name and
  // schedule.name are then stored as "own", and so are sources that the recipe leaves empty. A
  // checkpoint holds no object: a program that resumes passes it again, and the command refuses.
  // Each rank passes its own objects.
  //
  // A model with its weights, drawn by the program; model.weights still replaces them. It is moved
  // to the run's device, and trained itself: no other run may use it meanwhile.
  std::shared_ptr<Model> model;
  // Loss and metrics, shapes as train.task's; in one process only. No file has it: give it again.
  std::shared_ptr<const Task> task;
  // Makes the optimizer for the model's parameters, grouped by the recipe's settings.
  std::function<std::unique_ptr<Optimizer>(std::vector<ParameterGroup>)> optimizer;
  // The factor on optimizer.lr for a step of the run, from 0; a pure function, for resuming.
  std::function<double(int64_t step)> schedule;
  // Training and evaluation images, without data.stage, and without data.cache but "device".
  std::shared_ptr<const Dataset> dataset, eval_dataset;
  // Called in this order; see observer.h.
  std::vector<std::shared_ptr<Observer>> observers;

  // Tests: as PipelineSetup::before.
  std::function<void(const char* stage)> before_stage = {};
  // Tests: captures a step for train.graph=auto, instead of the device's own graphs.
  std::function<std::unique_ptr<StepGraph>()> make_graph = {};
};

struct TrainResult {
  RunEnd end = RunEnd::kDone;
  std::string stopped_by;  // kStopped: the reason given to ObserverContext::stop()
  // The run to resume had already ended: run() made no step and wrote nothing.
  bool was_finished = false;
  std::string unit = "images";      // of samples; "samples" if they are tensors
  int64_t steps = 0;                // in the whole run
  int64_t samples = 0;              // trained on since this process began, by all of the group
  int64_t steps_here = 0;           // made by this process
  double wall_s = 0;                // of this process's part of the run, set-up included
  PhaseTimes phases;                // of the same; sums to wall_s
  double cores_used = 0;            // mean over the same: CPU seconds per second
  int64_t memory_peak_bytes = 0;    // of the process, on the host
  PhaseBytes tensor_peaks;          // of tensors on the device
  std::vector<StreamTime> streams;  // of a GPU
  std::optional<PhaseTimes> device_phases;  // likewise, up to the last mark its stream has passed
  std::string graph;                        // the outcome of train.graph=auto, a line; empty: off
  std::string decoding;                     // that of data.decode_device=cuda, likewise
  std::optional<Telemetry> telemetry;       // means over this process's part; empty if it was off
  std::optional<Metrics> train;             // over the last epoch
  std::optional<Metrics> eval;  // the last evaluation, of the weights that the run ends with
  EarlyStopping::State best;    // of train.monitor
  std::string checkpoint;       // the last one written
  size_t skipped_count = 0;
  std::vector<SkippedSample> skipped;
};

// Belongs to one thread; holds the folder's lock while it lives. Everything that can be known to be
// wrong is found by the constructor, before any training time is spent; errors are of all kinds.
// While it lives, torch's number of threads in the process is train.threads. Of several trainers
// each sets this and the other switches of the process, such as TF32, again for its own steps.
class Trainer {
 public:
  Trainer(Env& env, const Recipe& recipe, TrainerOptions options);
  ~Trainer();

  // Makes the next step and what is due after it: records, an evaluation, a checkpoint. Returns
  // false if the run is over, after the last evaluation, restoring the best weights and the last
  // checkpoint. A caller may stop calling earlier; the run then does none of these.
  bool step();
  // Makes all steps. After an error so_far() has the results up to it.
  TrainResult run();
  // As run: every "auto" resolved.
  const Recipe& recipe() const;

  // The run so far: steps, samples, times and peaks of memory, the last evaluation.
  TrainResult so_far();

  // The model that is trained. At the end it has the weights that the run ends with: the best ones
  // if it restored them, the averaged ones with train.ema. Valid as long as the trainer.
  Model& model();

 private:
  struct State;
  friend struct MeasuredTrainer;  // src/advise/measured_trainer.cpp: benches change parts of a run

  std::unique_ptr<State> state_;
};

// The closing summary: results, and where the time went, as aligned text.
std::string format_summary(const TrainResult& result);

}  // namespace saturate
