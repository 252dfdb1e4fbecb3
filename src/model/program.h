// The TorchScript program that a model is.
#pragma once

#include "saturate/model.h"

namespace torch::jit {
struct Module;
}

namespace saturate {

// With the weights that it has by now, as long as the model lives; null for any other model.
const torch::jit::Module* program_of(Model& model);

}  // namespace saturate
