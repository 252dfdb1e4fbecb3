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
#include <optional>
#include <string>
#include <vector>

#include "saturate/early_stopping.h"
#include "saturate/env.h"
#include "saturate/model.h"
#include "saturate/train_step.h"

namespace saturate {

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
  Metrics epoch_metrics;                 // of the epoch under way, as far as it has come
  std::optional<Evaluation> evaluation;  // the last one
  EarlyStopping::State best;
  std::string recipe_toml;
  std::vector<std::string> classes;
  int image_size = 0;  // augment.size as resolved
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

// Copies each of `targets` from the tensor of its name. Fails with kRun naming `where` and the
// first tensor that is missing or of another shape.
void copy_by_name(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& targets,
                  const std::string& where);

// Copies tensors into a model's parameters and buffers; fails as copy_by_name.
void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where);

// A model's parameters, then its buffers.
std::vector<NamedTensor> model_state(Model& model);

// The checkpoints of one run, in its folder.
class CheckpointStore {
 public:
  // Creates the folder, and removes what a killed process left half-written in it, unless it is
  // not to be written to. Keeps the `keep` newest checkpoints and, where `keep_best`, the one of
  // the best metric.
  CheckpointStore(Env& env, std::string folder, int keep, bool keep_best, bool writes = true);

  // Writes path_of(its step), then removes those that need not be kept. Gives the path. An older
  // one that cannot be removed is no failure.
  std::string save(const Checkpoint& checkpoint);

  std::string path_of(int64_t step) const;  // FOLDER/step-NNNNNNNN.safetensors

 private:
  Env& env_;
  std::string folder_;
  int keep_;
  bool keep_best_;
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

  // Both must outlive this.
  CheckpointWriter(Env& env, CheckpointStore& store);
  // Waits for the save under way.
  ~CheckpointWriter();

  bool busy() const;
  // Copies the tensors into memory of its own, kept from one save to the next, and begins to write:
  // when it returns they may change. REQUIRES: nothing is under way or waiting to be asked
  // for by poll() or wait().
  void start(Checkpoint checkpoint);
  // What became of the save that start() began: once, after it has ended.
  std::optional<Outcome> poll();
  // The same, waiting for the end; empty where there is nothing to wait for.
  std::optional<Outcome> wait();

 private:
  Outcome save();

  Env& env_;
  CheckpointStore& store_;
  Checkpoint snapshot_;
  std::future<Outcome> future_;
};

// Paths of the checkpoints in a folder, newest first.
std::vector<std::string> list_checkpoints(Env& env, const std::string& folder);

// The newest checkpoint that can be read, of a run folder or of a checkpoints folder, or the file
// itself. Broken ones are passed over, each named by `warn`. Fails with kRun where none is left.
Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path = nullptr);

}  // namespace saturate
