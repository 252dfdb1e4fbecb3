// Checkpoints: everything a run needs to go on, in one safetensors file.
//
// Tensors are named "model.NAME" and "optimizer.NAME"; the file's metadata holds the position in
// the run, the recipe, the class names and a CRC-32 of all tensor data. docs/checkpoint_format.md
// specifies it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"

namespace saturate {

// Where in a run a checkpoint was taken.
struct RunPosition {
  int64_t step = 0;     // steps completed
  int64_t epoch = 0;    // the epoch the next batch belongs to
  int64_t batch = 0;    // the next batch's index within it
  int64_t samples = 0;  // trained on so far
  double time_s = 0;    // wall time of the run so far
};

struct Checkpoint {
  RunPosition position;
  std::string recipe_toml;
  std::vector<std::string> classes;
  int image_size = 0;  // augment.size as resolved
  std::vector<NamedTensor> model, optimizer;
};

// Writes atomically: after a crash at any moment the file is either absent or whole. Fails with
// kRun.
void write_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint);

// Fails with kRun naming the file where it is missing, unreadable, damaged (the checksum tells),
// not a checkpoint, or of a newer version.
Checkpoint read_checkpoint(Env& env, const std::string& path);

// Copies tensors into a model's parameters and buffers by name. Fails with kRun naming `where` and
// the first tensor that is missing or of another shape.
void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where);

// A model's parameters, then its buffers.
std::vector<NamedTensor> model_state(Model& model);

// The checkpoints of one run, in its folder.
class CheckpointStore {
 public:
  CheckpointStore(Env& env, std::string folder, int keep);

  // Writes "step-NNNNNNNN.safetensors", then removes all but the `keep` newest. Gives its path.
  std::string save(const Checkpoint& checkpoint);

 private:
  Env& env_;
  std::string folder_;
  int keep_;
};

// Paths of the checkpoints in a folder, newest first.
std::vector<std::string> list_checkpoints(Env& env, const std::string& folder);

// The newest checkpoint that can be read, of a run folder or of a checkpoints folder, or the file
// itself. Broken ones are passed over, each named by `warn`. Fails with kRun where none is left.
Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path = nullptr);

}  // namespace saturate
