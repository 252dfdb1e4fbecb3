// Runs that are evaluated and saved often, and the checkpoints that they leave.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/trainer_testing.h"

namespace saturate::testing {

// Eight steps, evaluated and saved after every second one.
inline Recipe often_watched_recipe() {
  Recipe recipe = small_recipe();
  recipe.data.eval_source = "synth:size=16,count=50,split=test";
  recipe.train.eval_every = 0;
  recipe.train.eval_every_steps = 2;
  recipe.checkpoint.every = 0;
  recipe.checkpoint.every_steps = 2;
  recipe.checkpoint.background = false;
  recipe.checkpoint.keep = 9;
  recipe.watch.every = 1;
  return recipe;
}

// No later value improves by so much.
inline Recipe worsening_recipe(int patience) {
  Recipe recipe = often_watched_recipe();
  recipe.train.monitor = "eval_loss";
  recipe.train.min_delta = 100;
  recipe.train.early_stop = patience;
  return recipe;
}

inline TrainerOptions resuming_options(const std::string& out, const std::string& from) {
  TrainerOptions options = saving_options(out);
  options.resume = from;
  return options;
}

inline TrainResult run_once(const Recipe& recipe, const TrainerOptions& options,
                            Env& env = Env::posix()) {
  return Trainer(env, recipe, options).run();
}

inline std::string file_of(const std::string& run, int step) {
  return fmt::format("{}/checkpoints/step-{:08}.safetensors", run, step);
}

inline std::vector<int64_t> saved_steps(const std::string& run) {
  std::vector<int64_t> steps;
  for (const auto& path : list_checkpoints(Env::posix(), run + "/checkpoints"))
    steps.push_back(read_checkpoint_state(Env::posix(), path).position.step);
  return steps;
}

inline std::map<std::string, at::Tensor> weights_of(const std::string& checkpoint) {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, tensor] : read_checkpoint(Env::posix(), checkpoint).model)
    found[name] = tensor;
  return found;
}

inline bool same_weights(const std::string& a, const std::string& b) {
  const auto of_a = weights_of(a), of_b = weights_of(b);
  for (const auto& [name, tensor] : of_a)
    if (!tensor.equal(of_b.at(name))) return false;
  return true;
}

// The steps of all records of a kind.
inline std::vector<int64_t> recorded_steps(const std::string& run, const std::string& kind) {
  std::vector<int64_t> steps;
  for (const auto& record : read_metrics(run))
    if (record["kind"] == kind) steps.push_back(record["step"]);
  return steps;
}

}  // namespace saturate::testing
