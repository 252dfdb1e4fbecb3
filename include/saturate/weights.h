// Weights of a file, by name, into a model: to go on from what somebody has trained.
//
// Files: safetensors; .pt and .pth as torch.save() writes them of a state_dict, or of a dictionary
// that holds one, of which nothing but tensors is read, so that a file can run no code; saturate's
// own checkpoints.
#pragma once

#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/model.h"

namespace saturate {

// The tensors of a file of any of these kinds, on the CPU; those of a .pt file may share memory and
// be laid out in any way. Of a .pt file with several dictionaries of tensors: the one of trained
// weights, or where none of its names begins with `prefix` those whose names do with the keys on
// the way before them, as "model_ema.fc.bias". Fails with kUsage where there is no file, otherwise
// with kRun.
std::vector<NamedTensor> read_weights(Env& env, const std::string& path,
                                      const std::string& prefix = "");

struct LoadedWeights {
  std::vector<std::string> taken;  // the model's names
  std::vector<std::string> fresh;  // those of the last layer that keep the values they have
  bool averaged = false;           // a checkpoint's averages, in place of its weights
};

// Copies a file's tensors into those of the same name, parameters and buffers. Names may begin with
// "module." (DataParallel's) or "model." (a checkpoint's) throughout, and hold "_orig_mod."
// (torch.compile's) anywhere. `prefix`: what the names begin with before that; whatever else is in
// the file is passed over, and kUsage where no name does. Without one, of a checkpoint with
// averaged weights (train.ema) those are taken, as by `saturate eval` and `export`. The last layer
// stays as it is where it is missing in the file, or has another number of outputs there; so do
// BatchNorm's counters that are missing. Whatever else does not match fails with kUsage, naming all
// of it, and then nothing is copied. Floating point of one size becomes that of another; integers
// for it, and the other way round, do not match. `only`: patterns (* stands for any text) of the
// model's names that are taken, each of which matches something; what matches none keeps its
// values. Empty: all.
LoadedWeights load_weights(Env& env, const std::string& path, Model& model,
                           const std::vector<std::string>& only = {},
                           const std::string& prefix = "");

}  // namespace saturate
