// saturate eval --generate: a text of a language model.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "run/text_generation.h"
#include "saturate/data/recipe.h"

namespace saturate {

// --generate and its options.
struct GenerationArguments {
  const CLI::Option* option = nullptr;
  std::string prompt;
  GenerationOptions options;
  bool is_asked() const { return option->count() > 0; }
};
void add_generation(CLI::App& command, GenerationArguments& arguments);
// Prints the prompt and the model's continuation of it. Fails with kUsage if it is not a language
// model.
void print_generated(Model& model, const at::Device& device, const Recipe& recipe,
                     const std::vector<TensorField>& fields, const GenerationArguments& arguments);

}  // namespace saturate
