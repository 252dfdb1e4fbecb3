// The file that tools/compile_step.py writes: a PT2 archive (a zip file, as torch's own tools write
// it) with the compiled library and extra/saturate.json, which says what it is for. Its members are
// in docs/compiled_step.md.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/model.h"
#include "saturate/recipe.h"

namespace saturate {

struct StepPackage {
  std::string path;
  nlohmann::json about;            // extra/saturate.json, checked to hold every member
  std::vector<std::byte> library;  // an ELF shared object
};

// Fails with kUsage where the file is missing, is no such package, or is damaged.
StepPackage read_step_package(Env& env, const std::string& path);

// The kind of GPU that machine code is for, such as "sm_90"; empty for a CPU.
std::string gpu_architecture(const at::Device& device);

// Fails with kUsage, naming all that differs, unless the package was made for this torch, these
// processor features, this GPU `architecture` (empty: none), the (resolved) recipe's settings and
// the model's tensors. `processes` share out the recipe's batches.
void require_fit(const StepPackage& package, const Recipe& recipe, Model& model, int processes,
                 const std::string& architecture);

// Fails with kUsage, saying what is wrong with the package and how to make another.
[[noreturn]] void fail_package(const std::string& problem, const std::string& path);

}  // namespace saturate
