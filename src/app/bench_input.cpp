#include "app/bench_input.h"

namespace saturate {

void add_bench_input(CLI::App& command, BenchInput& arguments) {
  command
      .add_option("INPUT", arguments.input,
                  "A recipe, or a source, which is then used with 224 pixels and random_resized")
      ->required();
  command
      .add_option("--set", arguments.overrides,
                  "section.key=value: overrides the recipe; may be repeated")
      ->allow_extra_args(false);
  auto* threads = command.add_option(
      "--threads", arguments.threads,
      arguments.threads.empty() ? "As 1,2; default: one per available core" : "As 1,2");
  threads->delimiter(',')->check(CLI::Range(1, 1024));
  if (!arguments.threads.empty()) threads->capture_default_str();
  command.add_option("--repeats", arguments.repeats, "Measurements of each row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--seconds", arguments.seconds, "Minimum length of one measurement")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command.add_option("--json", arguments.json, "Write the rows to this file too");
}

Recipe recipe_of(Env& env, const BenchInput& arguments) {
  if (arguments.input.ends_with(".toml"))
    return load_recipe(env, arguments.input, arguments.overrides);
  std::vector<std::string> settings = {"data.source=" + arguments.input, "augment.size=224",
                                       "augment.crop=random_resized"};
  settings.insert(settings.end(), arguments.overrides.begin(), arguments.overrides.end());
  return parse_recipe("", "the command line", settings);
}

}  // namespace saturate
