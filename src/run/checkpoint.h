// Checkpoints: everything needed to resume a run, in one safetensors file.
//
// Tensors are named "model.NAME", "optimizer.NAME", "average.NAME" and so on; the file's metadata
// holds the run's position, its recipe, the class names and a CRC-32 of all tensor data.
// docs/checkpoint_format.md specifies it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "saturate/data/env.h"
#include "saturate/early_stopping.h"
#include "saturate/model.h"
#include "saturate/observer.h"

namespace saturate {

class StagedCopy;

struct Checkpoint {
  RunPosition position;
  int branch = 0;  // within its folder: see CheckpointStore, which sets it
  // The run is complete and these are its final weights: those of best.best_step if it restored
  // them.
  bool final_weights = false;
  Metrics epoch_metrics;                 // of the unfinished epoch so far
  std::optional<Evaluation> evaluation;  // the last one
  EarlyStopping::State best;
  std::string recipe_toml;
  std::vector<std::string> classes;
  ImageSize image_size;             // augment.size as resolved; 0 for tensors
  std::vector<TensorField> fields;  // batch_fields() of the training source
  // In the training and evaluation sources; 0 if the file does not say, or there is none.
  int64_t images = 0, eval_images = 0;
  std::vector<ObjectVersion> objects;  // of the training source
  std::vector<NamedTensor> model, optimizer;
  std::vector<NamedTensor> scaler;     // see TrainStep::scaler_state()
  std::vector<NamedTensor> schedule;   // see schedule.h
  std::vector<NamedTensor> average;    // see weight_average.h; empty without one
  std::vector<NamedTensor> lookahead;  // likewise
  // torch generator states by device, for dropout: "cpu", and "cpu.1" of rank 1.
  std::vector<NamedTensor> random;
};

// The tensors of a checkpoint, and the prefix of their names in its file.
struct TensorGroup {
  const char* prefix;
  std::vector<NamedTensor> Checkpoint::*member;
};
inline constexpr TensorGroup kTensorGroups[] = {
    {"model.", &Checkpoint::model},     {"optimizer.", &Checkpoint::optimizer},
    {"scaler.", &Checkpoint::scaler},   {"schedule.", &Checkpoint::schedule},
    {"average.", &Checkpoint::average}, {"lookahead.", &Checkpoint::lookahead},
    {"random.", &Checkpoint::random}};

// Carries the state of a run's components into a checkpoint, and back. Each component has one
// visit() for all purposes, which passes every piece of its state.
class StateVisitor {
 public:
  enum class Purpose {
    kSave,         // from the components to the checkpoint
    kResume,       // from the checkpoint to the components
    kRestoreBest,  // likewise, but only the weights and what belongs to them
  };

  // `path`: the checkpoint's file, named in errors; not needed for kSave.
  StateVisitor(Purpose purpose, Checkpoint& checkpoint, std::string path = "")
      : checkpoint(checkpoint), path(std::move(path)), purpose_(purpose) {}

  bool saves() const { return purpose_ == Purpose::kSave; }
  bool resumes() const { return purpose_ == Purpose::kResume; }
  bool restores_best() const { return purpose_ == Purpose::kRestoreBest; }

  // State that does not belong to the weights: unchanged when the best ones are restored.
  template <class T>
  void value(T Checkpoint::*member, T& own) {
    if (saves()) checkpoint.*member = own;
    if (resumes()) own = checkpoint.*member;
  }
  // Tensors that belong to the weights: `get()` returns them, `set(tensors)` loads them.
  template <class Get, class Set>
  void tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get, const Set& set) {
    if (saves())
      checkpoint.*member = get();
    else
      set(checkpoint.*member);
  }
  // Tensors that do not.
  template <class Get, class Set>
  void progress_tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get,
                        const Set& set) {
    if (!restores_best()) tensors(member, get, set);
  }

  Checkpoint& checkpoint;
  const std::string path;

 private:
  const Purpose purpose_;
};

// Writes atomically: after a crash at any time the file is either absent or complete. Fails with
// kRun.
void write_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint);

// Fails with kRun naming the file if it is missing, unreadable, damaged (by its checksum), not a
// checkpoint, or of a newer version.
Checkpoint read_checkpoint(Env& env, const std::string& path);
// The same without tensors, which are not read.
Checkpoint read_checkpoint_state(Env& env, const std::string& path);

// Copies each of `targets` from the tensor of the same name. Fails with kRun naming `where` and the
// first tensor that is missing or has another shape.
void copy_by_name(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& targets,
                  const std::string& where);

// Copies tensors into a model's parameters and buffers; fails like copy_by_name.
void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where);

// Copies averaged weights, Checkpoint::average, into a model: all parameters, and the buffers that
// it has. Fails like copy_by_name.
void load_average(Model& model, const std::vector<NamedTensor>& average, const std::string& where);

// A model's parameters, then its buffers.
std::vector<NamedTensor> model_state(Model& model);

// The checkpoints of one run, in its folder. A run that resumes from an older one begins a branch:
// the newer files stay, but belong to an abandoned branch and are ignored unless given by path.
// Each file holds its branch number; the folder's branches.json, written when a run has gone back,
// records where each branch began.
class CheckpointStore {
 public:
  // Creates the folder, and removes incomplete files of a killed process, unless `writes` is false.
  // Keeps the options.keep newest checkpoints of the branch whose headers are sound and, with
  // options.keep_best, the newest one that was the best when it was saved.
  CheckpointStore(Env& env, std::string folder, const CheckpointOptions& options,
                  bool writes = true);

  // Whether the checkpoint at `path` is path_of(its step), or a copy of it.
  bool holds(const std::string& path) const;

  // Sets where the run resumes: after the checkpoint at `from`, or at its first step if that is
  // empty. Begins a branch if the folder holds checkpoints off the run's path, and returns these,
  // newest first. Writes the branch to branches.json, or inserts that file before `files`, for the
  // caller to write. To be called before the first save. Fails with kRun.
  std::vector<std::string> begin(const std::string& from, std::vector<TextFile>* files = nullptr);

  // Writes path_of(its step), then removes checkpoints of the branch that need not be kept. Returns
  // the path. Failing to remove an old one is not an error.
  std::string save(Checkpoint checkpoint);

  // The checkpoint of this step on the run's own path through the branches. Fails with kRun if
  // there is none, or it cannot be read.
  Checkpoint read(int64_t step) const;
  // The file of `step`, at most that of the checkpoint at `from`, on the path to it. Their folder
  // may be another run's. Empty if there is no sound one. Only headers are read. Fails with kRun if
  // the folder is damaged.
  std::string find_step(const std::string& from, int64_t step) const;

  const std::string& folder() const { return folder_; }
  std::string path_of(int64_t step) const;  // FOLDER/step-NNNNNNNN.safetensors

 private:
  void remove_old(const std::string& saved);

  Env& env_;
  std::string folder_;
  CheckpointOptions options_;
  int branch_ = 0;
};

// Saves on a separate thread, one checkpoint at a time, while training continues; on the caller's
// if the system starts no more. All methods belong to one thread. A hanging write blocks wait() and
// the destructor: a thread cannot be removed from a system call.
class CheckpointWriter {
 public:
  struct Outcome {
    int64_t step = 0;
    double seconds = 0;        // to write
    std::string path;          // of the checkpoint
    std::exception_ptr error;  // why saving failed; null on success
  };

  // Both must outlive this. `staged` copies a GPU's tensors; null: start() waits for its copies.
  CheckpointWriter(Env& env, CheckpointStore& store, std::shared_ptr<StagedCopy> staged = nullptr);
  // Waits for the present save.
  ~CheckpointWriter();

  // Whether a save is still in progress after waiting at most `limit` for its end.
  bool busy(std::chrono::milliseconds limit = {}) const;
  // Copies the tensors into reusable memory, and begins to write: afterwards they may change. A
  // GPU's copies are enqueued on the caller's current stream, which must be the one that changes
  // the tensors; the writer thread waits for them. REQUIRES: no save is in progress or has an
  // outcome not yet returned by poll() or wait().
  void start(Checkpoint checkpoint);
  // Writes the last snapshot again, after a failure. REQUIRES: as start().
  void restart();
  // The outcome of the last save: returned once, after it has ended.
  std::optional<Outcome> poll();
  // The same, but waits for the end; empty if there is nothing to wait for.
  std::optional<Outcome> wait();

 private:
  Outcome save();

  Env& env_;
  CheckpointStore& store_;
  const std::shared_ptr<StagedCopy> staged_;  // null on a CPU
  Checkpoint snapshot_;
  std::future<Outcome> future_;
};

// Paths of the checkpoints in a folder, newest first, except those of abandoned branches (see
// CheckpointStore). Fails with kRun if branches.json is damaged.
std::vector<std::string> list_checkpoints(Env& env, const std::string& folder);

// The newest readable checkpoint of list_checkpoints() in a run folder or checkpoints folder, or
// the file itself. Unreadable ones are skipped, each reported to `warn`. Fails with kRun if none is
// left.
Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path = nullptr);

// The newest of list_checkpoints() that was the best by train.monitor when it was saved. Fails with
// kRun if there is none, and with kUsage if `path` is not a folder.
std::string best_checkpoint_path(Env& env, const std::string& path);

}  // namespace saturate
