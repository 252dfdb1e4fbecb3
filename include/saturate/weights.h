// SPDX-License-Identifier: BSD-3-Clause
// Loads pretrained weights from a file into a model, by name; writes a model as an ONNX file.
//
// Files: safetensors; .pt and .pth written by torch.save() from a state_dict, or from a dictionary
// that contains one, from which only tensors are read, so that a file can run no code; saturate's
// own checkpoints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/model.h"

namespace saturate {

// The tensors of any such file, on the CPU; those of a .pt file may share memory and have any
// layout. From a .pt file with several dictionaries of tensors: the trained weights, or if none of
// their names begins with `prefix` the tensors whose path of keys and name do, as
// "model_ema.fc.bias". Fails with kUsage if there is no file, otherwise with kRun.
std::vector<NamedTensor> read_weights(Env& env, const std::string& path,
                                      const std::string& prefix = "");

struct LoadedWeights {
  std::vector<std::string> taken;  // the model's names
  std::vector<std::string> fresh;  // the last layer's names that were not loaded
  bool averaged = false;           // a checkpoint's averages were loaded instead of its weights
};

// Copies a file's tensors into parameters and buffers of the same name. All names may begin with up
// to two of "module." (DataParallel's) and "model." (Lightning's, a checkpoint's), and contain
// "_orig_mod." (torch.compile's), "_fsdp_wrapped_module." or "_checkpoint_wrapped_module."
// anywhere. `prefix`: the names' prefix before that; other names in the file are ignored, and it is
// a kUsage error if none matches. A checkpoint's averaged weights (train.ema) are preferred to the
// plain ones of the same names, as in `saturate eval` and `export`. The last layer stays unchanged
// if it is missing in the file, or has another number of outputs there; so do missing BatchNorm
// counters. Any other mismatch fails with kUsage, naming all of them, and nothing is copied.
// Floating-point types are converted to each other; integers and floating point do not match.
// `only`: patterns (* matches any text) of the model's names to load, each of which must match
// something; other names keep their values. Empty: all.
LoadedWeights load_weights(Env& env, const std::string& path, Model& model,
                           const std::vector<std::string>& only = {},
                           const std::string& prefix = "");

// Writes the evaluation forward as an ONNX file, operator set 17: input "images" [batch, 3,
// height, width] to output "logits"; weights by the model's names; `metadata` as its properties, of
// which "model" names the model in errors. Fails with kUsage, naming the operator, if the forward
// uses one that is not supported or fixes the number of images. Leaves the model in evaluation
// mode. REQUIRES: a model on the CPU.
void export_onnx(Env& env, const std::string& path, Model& model, const ImageSize& size,
                 const std::map<std::string, std::string>& metadata = {});
// The same for any input: a tensor is called "input".
void export_onnx(Env& env, const std::string& path, Model& model, const ModelInput& input,
                 const std::map<std::string, std::string>& metadata = {});

}  // namespace saturate
