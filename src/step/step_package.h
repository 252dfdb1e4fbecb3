// The file written by tools/compile_step.py: a PT2 archive (a zip file, as torch's tools write it)
// with the compiled library and extra/saturate.json, which describes it. docs/compiled_step.md
// specifies its members.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/recipe.h"
#include "saturate/model.h"

namespace saturate {

struct StepPackage {
  std::string path;
  nlohmann::json about;            // extra/saturate.json; all members are present
  std::vector<std::byte> library;  // an ELF shared object
};

// Fails with kUsage if the file is missing, damaged or not such a package.
StepPackage read_step_package(Env& env, const std::string& path);

// The GPU architecture of machine code, such as "sm_90"; empty for a CPU.
std::string gpu_architecture(const at::Device& device);

// Fails with kUsage, naming all differences, unless the package was made for this torch, these
// processor features, this GPU `architecture` (empty: none), the (resolved) recipe's settings and
// the model's tensors. `processes` split the recipe's global batches.
void require_fit(const StepPackage& package, const Recipe& recipe, Model& model, int processes,
                 const std::string& architecture);

// Fails with kUsage, naming the problem and how to make a new package.
[[noreturn]] void fail_package(const std::string& problem, const std::string& path);

}  // namespace saturate
