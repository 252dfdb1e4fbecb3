// Whether data and a recipe fit a model, and a run that is resumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

// The model's numbers of the classes of `data`, by their names, for LoaderOptions::labels; empty if
// they are the same. A class may be missing. Classes that are named by their numbers may be as many
// as the model's `outputs`, also if the training data had fewer. Fails with kData, naming `source`
// and the class, if the model has no such class, or if masks number them in another way.
std::vector<int64_t> labels_in_model(const std::vector<std::string>& classes, const Dataset& data,
                                     const std::string& source, int64_t outputs);

// Fails with kData, naming both, if a run that resumes from `saved` would not have its training
// data: as many images (if the checkpoint says), the same classes, and no object of a store that
// was replaced: `objects` are data.versions(). `changed`: it may have others, of as many classes.
void require_same_data(const Checkpoint& saved, const Dataset& data,
                       const std::vector<ObjectVersion>& objects, const std::string& source,
                       bool changed);

// Lines for require_same_objects().
std::string text_of(const std::vector<ObjectVersion>& objects);
// Fails with kUsage, naming the object and two ranks, if ranks have opened different objects of one
// name. They may read copies at other places, under other names. `ranks`: the text_of() of each.
void require_same_objects(const std::vector<std::string>& ranks);

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
