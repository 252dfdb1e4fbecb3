// saturate export: a checkpoint's model as a file for other programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "base/printable.h"
#include "model/export_model.h"
#include "run/checkpoint.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"
#include "saturate/safetensors.h"

namespace saturate {
namespace {

struct ExportArguments {
  SavedModelArguments model;
  std::string format, out;
};

// On the CPU, in the default memory order.
std::unique_ptr<Model> load_model(Env& env, const Checkpoint& checkpoint, const Recipe& recipe,
                                  bool plain, const std::string& path) {
  auto model = make_model(recipe.model, {recipe.model.classes, checkpoint.image_size, env});
  load_into(*model, checkpoint.model, path);
  if (!checkpoint.average.empty() && !plain) load_average(*model, checkpoint.average, path);
  return model;
}

// Additional data that readers of the weights need. "format" is expected by Python's libraries.
std::map<std::string, std::string> metadata(const Checkpoint& checkpoint, const Recipe& recipe) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  return {{"format", "pt"},
          {"model", recipe.model.name},
          {"classes", nlohmann::json(checkpoint.classes).dump(-1, ' ', false, replace)},
          {"image_size", std::to_string(checkpoint.image_size)}};
}

int export_model(const ExportArguments& arguments) {
  Env& env = Env::posix();
  std::string path;
  const Checkpoint checkpoint = read_saved_model(env, arguments.model, path);
  const Recipe recipe = parse_saved_recipe(checkpoint.recipe_toml, path);
  const bool script = arguments.format == "torchscript";
  const std::string out = !arguments.out.empty()
                              ? arguments.out
                              : recipe.model.name + (script ? ".pt" : ".safetensors");
  const auto model = load_model(env, checkpoint, recipe, arguments.model.plain, path);
  if (script)
    export_torchscript(env, out, *model, checkpoint.image_size);
  else
    write_safetensors(env, out, model_state(*model), metadata(checkpoint, recipe));
  const bool averaged = !checkpoint.average.empty() && !arguments.model.plain;
  fmt::print("{}: {} of {}{}\n", printable(out), recipe.model.name, printable(path),
             averaged ? ", averaged weights" : "");
  return 0;
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<ExportArguments>(
      app, exit_code, "export", "Export a saved model for other programs", export_model);
  add_saved_model(command, arguments.model);
  command
      .add_option("--format", arguments.format,
                  "safetensors: the weights by name; torchscript: a program that Python runs")
      ->required()
      ->check(CLI::IsMember({"safetensors", "torchscript"}));
  command.add_option("--out", arguments.out,
                     "The file (default: the model's name, in this folder)");
}

}  // namespace saturate
