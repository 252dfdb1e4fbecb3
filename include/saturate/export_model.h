// A model as a file that Python runs by itself.
#pragma once

#include <string>

#include "saturate/env.h"
#include "saturate/model.h"

namespace saturate {

// Writes a TorchScript program, for torch.jit.load(): evaluation's forward, traced, so that it
// takes any number of images [N, 3, size, size]; its parameters have the model's names. A model
// that is such a program itself is written as it is, with its weights. The model is left in
// evaluation mode. Writes atomically; fails with kRun. REQUIRES: a model on the CPU.
void export_torchscript(Env& env, const std::string& path, Model& model, int size);

}  // namespace saturate
