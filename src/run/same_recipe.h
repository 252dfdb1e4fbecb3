// Whether a recipe fits the run that it resumes.
#pragma once

#include <string>

#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

// to_toml()'s lines as "section.key = value", without its headers.
std::string with_full_keys(const std::string& toml);

// Fails with kUsage naming both values if `recipe` has another seed or train.batch than `saved`,
// the recipe in the checkpoint at `path`: it would train on other batches.
void require_same_batches(const Recipe& saved, const Recipe& recipe, const std::string& path);

// Throws `error`, which loading a checkpoint's tensors has thrown, with both values of each key
// that determines these tensors and has changed since; unchanged if none has.
[[noreturn]] void fail_naming_changes(const Error& error, const Recipe& saved,
                                      const Recipe& recipe);

}  // namespace saturate
