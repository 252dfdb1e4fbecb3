// The TorchScript program of a model.
#pragma once

#include "saturate/model.h"

namespace torch::jit {
struct Module;
}

namespace saturate {

// With its present weights, valid as long as the model; null for any other model.
const torch::jit::Module* program_of(Model& model);

}  // namespace saturate
