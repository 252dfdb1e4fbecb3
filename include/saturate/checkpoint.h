// Checkpoints: everything a run needs to go on, in one safetensors file.
//
// Tensors are named "model.NAME", "optimizer.NAME", "average.NAME" and so on; the file's metadata
// holds where the run was, its recipe, the class names and a CRC-32 of all tensor data.
// docs/checkpoint_format.md specifies it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/early_stopping.h"
#include "saturate/env.h"
#include "saturate/model.h"
#include "saturate/train_step.h"

namespace saturate {

class StagedCopy;

// Where in a run a checkpoint was taken.
struct RunPosition {
  int64_t step = 0;     // steps completed
  int64_t epoch = 0;    // the epoch the next batch belongs to
  int64_t batch = 0;    // the next batch's index within it
  int64_t samples = 0;  // trained on so far
  double time_s = 0;    // wall time of the run so far
};

// What one evaluation found.
struct Evaluation {
  int64_t step = 0;              // steps completed when it was made
  Metrics metrics;               // of the averaged weights, where there is an average
  std::optional<Metrics> plain;  // of the weights themselves, where metrics are the average's
};

struct Checkpoint {
  RunPosition position;
  int branch = 0;  // of its folder's: see CheckpointStore, which sets it
  // The run had come to its end, and these are the weights it ends with: those of best.best_step
  // where it went back to them.
  bool final_weights = false;
  Metrics epoch_metrics;                 // of the epoch under way, as far as it has come
  std::optional<Evaluation> evaluation;  // the last one
  EarlyStopping::State best;
  std::string recipe_toml;
  std::vector<std::string> classes;
  int image_size = 0;  // augment.size as resolved
  // In the training source and in the evaluation's; 0 where the file does not say, or there is
  // none.
  int64_t images = 0, eval_images = 0;
  std::vector<NamedTensor> model, optimizer;
  std::vector<NamedTensor> scaler;     // see TrainStep::scaler_state()
  std::vector<NamedTensor> schedule;   // see schedule.h
  std::vector<NamedTensor> average;    // see weight_average.h; empty without one
  std::vector<NamedTensor> lookahead;  // see lookahead.h; empty without it
  // State of torch's generator by device, for dropout: "cpu", and "cpu.1" of rank 1.
  std::vector<NamedTensor> random;
};

// Writes atomically: after a crash at any moment the file is either absent or whole. Fails with
// kRun.
void write_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint);

// Fails with kRun naming the file where it is missing, unreadable, damaged (the checksum tells),
// not a checkpoint, or of a newer version.
Checkpoint read_checkpoint(Env& env, const std::string& path);
// The same without its tensors, of which nothing is read.
Checkpoint read_checkpoint_state(Env& env, const std::string& path);

// Copies each of `targets` from the tensor of its name. Fails with kRun naming `where` and the
// first tensor that is missing or of another shape.
void copy_by_name(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& targets,
                  const std::string& where);

// Copies tensors into a model's parameters and buffers; fails as copy_by_name.
void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where);

// A model's parameters, then its buffers.
std::vector<NamedTensor> model_state(Model& model);

// The checkpoints of one run, in its folder. A run that goes back to an older one begins a branch:
// the newer files stay, but belong to a branch that was left, and nothing looks at them again
// unless it is given their path. Each file holds the number of its branch; the folder's
// branches.json, which is there once a run has gone back, says where each branch began.
class CheckpointStore {
 public:
  // Creates the folder, and removes what a killed process left half-written in it, unless it is
  // not to be written to. Keeps the `keep` newest checkpoints of the branch and, where `keep_best`,
  // the newest that was the best of all when it was saved.
  CheckpointStore(Env& env, std::string folder, int keep, bool keep_best, bool writes = true);

  // Whether the checkpoint at `path` is path_of(its step), or a copy of it.
  bool holds(const std::string& path) const;

  // Where the run goes on: after the checkpoint at `from`, or from its first step where that is
  // empty. Begins a branch where the folder holds checkpoints that the run would not have come by,
  // and gives their paths, newest first. To be called before the first save. Fails with kRun.
  std::vector<std::string> begin(const std::string& from);

  // Writes path_of(its step), then removes those of the branch that need not be kept. Gives the
  // path. An older one that cannot be removed is no failure.
  std::string save(Checkpoint checkpoint);

  // The checkpoint of this step on the way that the run has come. Fails with kRun where there is
  // none, or it cannot be read.
  Checkpoint read(int64_t step) const;

  std::string path_of(int64_t step) const;  // FOLDER/step-NNNNNNNN.safetensors

 private:
  void remove_old(const std::string& saved);

  Env& env_;
  std::string folder_;
  int keep_;
  bool keep_best_;
  int branch_ = 0;
};

// Saves on a thread of its own, one checkpoint at a time, while training goes on. All methods
// belong to one thread. A write that hangs keeps wait() and the destructor waiting: no thread can
// be taken out of a system call.
class CheckpointWriter {
 public:
  struct Outcome {
    int64_t step = 0;
    double seconds = 0;        // for writing
    std::string path;          // of the checkpoint
    std::exception_ptr error;  // why it was not saved; null where it was
  };

  // Both must outlive this. `staged` copies a GPU's tensors; null: start() waits for its copies.
  CheckpointWriter(Env& env, CheckpointStore& store, std::shared_ptr<StagedCopy> staged = nullptr);
  // Waits for the save under way.
  ~CheckpointWriter();

  bool busy() const;
  // Copies the tensors into memory of its own, kept from one save to the next, and begins to write:
  // when it returns they may change. A GPU's copies are enqueued on the caller's current stream,
  // which must be the one that changes the tensors; the thread that writes waits for them.
  // REQUIRES: nothing is under way or waiting to be asked for by poll() or wait().
  void start(Checkpoint checkpoint);
  // Begins to write the last one again, which failed. REQUIRES: as start().
  void start_again();
  // What became of the save that start() began: once, after it has ended.
  std::optional<Outcome> poll();
  // The same, waiting for the end; empty where there is nothing to wait for.
  std::optional<Outcome> wait();

 private:
  Outcome save();

  Env& env_;
  CheckpointStore& store_;
  const std::shared_ptr<StagedCopy> staged_;  // null on a CPU
  Checkpoint snapshot_;
  std::future<Outcome> future_;
};

// Paths of the checkpoints in a folder, newest first, but for those of branches that the run has
// left (see CheckpointStore). Fails with kRun where branches.json is damaged.
std::vector<std::string> list_checkpoints(Env& env, const std::string& folder);

// The newest checkpoint of list_checkpoints() that can be read, of a run folder or of a checkpoints
// folder, or the file itself. Broken ones are passed over, each named by `warn`. Fails with kRun
// where none is left.
Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path = nullptr);

}  // namespace saturate
