// The components of a step, made from a recipe.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "run/weight_average.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/task.h"
#include "saturate/train_step.h"

namespace saturate {

class Group;

struct TrainingParts {
  std::shared_ptr<Model> model;            // on its device
  std::shared_ptr<const Task> task;        // of the recipe, with the model's own loss if any
  std::unique_ptr<Optimizer> optimizer;    // of `group`, if it is sharded
  std::unique_ptr<WeightAverage> average;  // null without train.ema
  std::unique_ptr<Lookahead> lookahead;    // null without train.lookahead
};

// TrainerOptions: objects that a program supplies in place of the recipe's.
struct OwnParts {
  std::shared_ptr<Model> model;
  std::shared_ptr<const Task> task;
  std::function<std::unique_ptr<Optimizer>(std::vector<ParameterGroup>)> optimizer;
};

// Replaces "auto" of train.monitor by the task's main metric. Fails with kUsage if it, or
// schedule.metric, names none of the task's.
void resolve_metrics(Recipe& recipe, const Task& task);

// Draws the weights by recipe.seed, and resolves train.checkpoint_segments and train.monitor.
// REQUIRES: everything else resolved but train.batch. `fill` may change the weights, before
// anything else has seen them.
// `input`: model_input() of the recipe. `group`: the processes that distributed.shard_optimizer
// divides the optimizer among, if any.
TrainingParts make_training_parts(const ModelInput& input, Recipe& recipe, const at::Device& device,
                                  const std::function<void(Model&)>& fill = {},
                                  Group* group = nullptr, const OwnParts& own = {});

// Bytes of a checkpoint's tensors, the same at every step. With a sharded optimizer to be called by
// all processes.
int64_t bytes_of_checkpoint(const TrainingParts& parts);

// `micro_batch`: images computed together, at most.
StepOptions step_options(const Recipe& recipe, int micro_batch);

}  // namespace saturate
