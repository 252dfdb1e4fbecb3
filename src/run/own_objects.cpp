#include "run/own_objects.h"

#include "saturate/data/error.h"
#include "saturate/data/registry.h"

namespace saturate {
namespace {

void require_named(bool good, const std::string& key, const std::string& needs) {
  if (!good)
    fail(ErrorKind::kUsage, key + " needs " + needs + ", and the program gives its own", key,
         "Set it otherwise, or let the recipe name one: add_model() adds a model to its table");
}

}  // namespace

Recipe naming_own_objects(Recipe recipe, const TrainerOptions& options) {
  const std::string own(kOwnObject);
  const TrainOptions& train = recipe.train;
  const PrecisionMode mode = recipe.precision.mode;
  if (options.model) {
    const std::string by_name = "a model that can be built by its name";
    require_named(train.batch != kAutomatic, "train.batch=auto", by_name);
    require_named(train.compiled.empty(), "train.compiled", by_name);
    require_named(recipe.model.file.empty(), "model.file", by_name);
    require_named(recipe.distributed.mode != ParallelMode::kDp, "distributed.mode=dp", by_name);
    recipe.model.name = own;
  }
  if (options.task && options.group)
    fail(ErrorKind::kUsage, "a program's own task trains in one process only", "the program",
         "Leave out TrainerOptions::task, or the group");
  if (options.task)
    require_named(train.batch != kAutomatic, "train.batch=auto", "the task that train.task names");
  if (options.optimizer) {
    const std::string by_name = "an optimizer that can be built by its name";
    require_named(train.batch != kAutomatic, "train.batch=auto", by_name);
    require_named(
        mode != PrecisionMode::kBf16O2 && mode != PrecisionMode::kFp16O2,
        "precision.mode=" + std::string(mode == PrecisionMode::kBf16O2 ? "bf16" : "fp16") + "-o2",
        by_name);
    recipe.optimizer.name = own;
  }
  if (options.schedule) recipe.schedule.name = own;
  if (options.dataset && recipe.data.source.empty()) recipe.data.source = own + ":";
  if (options.eval_dataset && recipe.data.eval_source.empty()) recipe.data.eval_source = own + ":";
  return recipe;
}

}  // namespace saturate
