// saturate eval: the accuracy of a saved model.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "run/setup.h"
#include "saturate/checkpoint.h"
#include "saturate/evaluator.h"

namespace saturate {
namespace {

struct EvalArguments {
  std::string checkpoint, data, json;
  std::vector<std::string> overrides;
};

void write_json(Env& env, const std::string& path, const Metrics& metrics) {
  nlohmann::ordered_json json = {{"samples", metrics.samples},
                                 {"loss", metrics.loss},
                                 {"accuracy", metrics.accuracy},
                                 {"accuracy5", nullptr}};
  if (metrics.accuracy5) json["accuracy5"] = *metrics.accuracy5;
  write_atomically(env, path, json.dump(2) + "\n");
}

void report_skipped(const Evaluator& evaluator) {
  for (const auto& sample : evaluator.skipped())
    fmt::print(stderr, "saturate: warning: skipped {}: {}\n", sample.name, sample.reason);
}

int eval(const EvalArguments& arguments) {
  Env& env = Env::posix();
  std::string path;
  const auto warn = [](const std::string& text) {
    fmt::print(stderr, "saturate: warning: {}\n", text);
  };
  const Checkpoint checkpoint = find_checkpoint(env, arguments.checkpoint, warn, &path);
  const Recipe recipe = parse_recipe(checkpoint.recipe_toml, path, arguments.overrides);
  const at::Device device = resolve_device(recipe.train.device);
  at::set_num_threads(recipe.train.threads);
  const auto model = make_model(recipe.model, {recipe.model.classes, checkpoint.image_size});
  model->to(device, recipe.train.channels_last);
  load_into(*model, checkpoint.model, path);
  Evaluator evaluator(env, recipe, arguments.data, checkpoint.classes, device);
  const Metrics metrics = evaluator.run(*model);
  report_skipped(evaluator);
  fmt::print("accuracy {:.2f}%", metrics.accuracy * 100);
  if (metrics.accuracy5) fmt::print("  top-5 {:.2f}%", *metrics.accuracy5 * 100);
  fmt::print("  loss {:.4f}  on {} images  ({})\n", metrics.loss, metrics.samples, path);
  if (!arguments.json.empty()) write_json(env, arguments.json, metrics);
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "Evaluate a saved model on a source");
  command
      ->add_option("CHECKPOINT", arguments->checkpoint, "A run folder (its newest) or a checkpoint")
      ->required();
  command->add_option("--data", arguments->data, "Source, as data.source of a recipe")->required();
  command
      ->add_option("--set", arguments->overrides,
                   "section.key=value: overrides the run's recipe; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--json", arguments->json, "Write the result to this file too");
  command->callback([arguments, &exit_code] { exit_code = eval(*arguments); });
}

}  // namespace saturate
