// What a step needs, as a recipe has it.
#pragma once

#include <functional>
#include <memory>

#include "saturate/ledger.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/recipe.h"
#include "saturate/train_step.h"
#include "saturate/weight_average.h"

namespace saturate {

struct TrainingParts {
  std::unique_ptr<Model> model;  // on its device
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<WeightAverage> average;  // null without train.ema
};

// Draws the weights by recipe.seed, and resolves train.checkpoint_segments. REQUIRES: everything
// else resolved but train.batch. `fill` may change the weights, before anything else has seen them.
TrainingParts make_training_parts(Recipe& recipe, const at::Device& device,
                                  const std::function<void(Model&)>& fill = {});

// `part`: images computed together, at most.
StepOptions step_options(const Recipe& recipe, int part);

}  // namespace saturate
