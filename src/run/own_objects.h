// Objects that a program gives its run in place of what the recipe names.
#pragma once

#include "saturate/data/recipe.h"
#include "saturate/trainer.h"

namespace saturate {

// `recipe` as the run stores it: "own" names each object of `options`, but a source that the recipe
// names itself keeps its name. Fails with kUsage on a setting that needs what only a name can give.
Recipe naming_own_objects(Recipe recipe, const TrainerOptions& options);

}  // namespace saturate
