// SPDX-License-Identifier: BSD-3-Clause
// From the arguments of saturate.Loader to the parts of a loader.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "own_dataset.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/data/world.h"

namespace saturate {

// How saturate/loader.py makes a loader.
struct Setup {
  std::string source;    // a recipe's; if `own` is used, for messages only
  nanobind::object own;  // None, or what make_own_dataset() reads with
  size_t own_size = 0;
  std::vector<std::string> classes;  // of `own`
  bool own_masks = false;
  std::shared_ptr<LabelVectors> vectors;  // null: `own` has one label each, or masks
  std::vector<std::string> overrides;     // of the recipe
  uint32_t epochs = 0;                    // of the run; 0: unknown
  bool train = true, planar = true, names = false;
  std::string dtype;
  int rank = 0, world = 1;
  bool soft_labels = false;
  bool mixes = true;          // false: the caller mixes the pixels
  nanobind::object allocate;  // None, or a function of a number of bytes: (owner, address)
};

// As the variables of a launcher say. Where rank 0 listens is of no interest to a loader.
World world_of_launcher();

// The caller has Python's lock. All fail with kUsage on arguments that do not fit together.
Recipe recipe_of(const Setup& setup);
// Released meanwhile is Python's lock. A signal's exception (Ctrl-C) ends waits for a store, and
// the copy of data.stage.
std::unique_ptr<Dataset> open_data(const Setup& setup, const Recipe& recipe);
LoaderOptions loader_options(const Recipe& recipe, const Setup& setup, const Dataset& data);
// Memory that Setup::allocate makes, or none.
BufferAllocator allocator_of(const Setup& setup);

}  // namespace saturate
