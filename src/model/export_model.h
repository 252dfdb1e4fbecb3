// Export of a model to a file that Python can run.
#pragma once

#include <string>

#include "saturate/data/env.h"
#include "saturate/model.h"

namespace torch::jit {
struct Module;
}

namespace saturate {

// The program that the model is, or its evaluation forward, traced; its tensors are the model's, by
// the same names. Leaves the model in evaluation mode. REQUIRES: a model on the CPU.
torch::jit::Module evaluation_program(Model& model, const ModelInput& input);

// Writes a TorchScript program for torch.jit.load(): the evaluation forward, traced for any number
// of samples as `input` says; parameters have the model's names. A model that is such a program
// itself is written unchanged, with its weights. Leaves the model in evaluation mode. Writes
// atomically; fails with kRun. REQUIRES: a model on the CPU.
void export_torchscript(Env& env, const std::string& path, Model& model, const ModelInput& input);

}  // namespace saturate
