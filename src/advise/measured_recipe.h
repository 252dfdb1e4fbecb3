// A recipe as it is run to be measured.
#pragma once

#include <algorithm>

#include "saturate/data/recipe.h"

namespace saturate {

// Without what happens between steps, without an end before the measurements', and with weights
// that stay as they are: no measurement meets other numbers than the one before.
inline Recipe measured_recipe(Recipe recipe) {
  recipe.data.eval_source.clear();
  recipe.optimizer.lr = 0;
  recipe.train.epochs = std::max(recipe.train.epochs, 1e6);
  recipe.train.max_minutes = 0;
  recipe.train.early_stop = 0;
  recipe.watch.progress = false;
  recipe.watch.prometheus_port = 0;  // which the next run may want
  recipe.watch.trace.clear();
  recipe.watch.samples = recipe.watch.histograms = 0;
  return recipe;
}

}  // namespace saturate
