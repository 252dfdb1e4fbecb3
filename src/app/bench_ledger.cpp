// saturate bench ledger: the cost of accounting time by phase.
#include <fmt/format.h>

#include "advise/gain.h"
#include "advise/step_bench.h"
#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "saturate/data/env.h"

namespace saturate {
namespace {

struct LedgerArguments {
  std::string recipe, json;
  std::vector<std::string> overrides;
  StepBenchOptions options = {.rounds = 20, .seconds = 0.5};
};

int measure(const LedgerArguments& arguments) {
  require_release_build();
  Env& env = Env::posix();
  const Recipe recipe = load_recipe(env, arguments.recipe, arguments.overrides);
  catch_stop_signals();
  const ScratchFolder folder;
  StepBenchOptions options = arguments.options;
  options.folder = folder.path();
  options.should_stop = [] { return stop_signal() != 0; };
  const auto found = bench_ledger(env, recipe, options);
  if (!found) return 128 + stop_signal();
  const Gain gain = paired_gain(found->on, found->off);
  BenchReport report{"ledger",
                     {{"ledger on", "images/s", found->on, nlohmann::ordered_json::object()},
                      {"ledger off", "images/s", found->off, nlohmann::ordered_json::object()}}};
  report.rows[1].keys = {{"gain", gain.ratio}, {"low", gain.low}, {"high", gain.high}};
  print_report(report);
  fmt::print("\nwithout the ledger: {:+.2f} % images/s (95 % interval {:+.2f} to {:+.2f})\n",
             100 * (gain.ratio - 1), 100 * (gain.low - 1), 100 * (gain.high - 1));
  if (!arguments.json.empty()) write_report(env, arguments.json, report);
  return 0;
}

}  // namespace

void add_bench_ledger(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<LedgerArguments>();
  CLI::App* command = bench.add_subcommand("ledger", "The cost of the ledger in a recipe's step");
  command->add_option("RECIPE", arguments->recipe, "Recipe file")->required();
  command
      ->add_option("--set", arguments->overrides,
                   "section.key=value: overrides the recipe; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--rounds", arguments->options.rounds, "Measurements of each")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_option("--seconds", arguments->options.seconds, "Minimum length of one measurement")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->add_option("--json", arguments->json, "Write the rows to this file too");
  command->footer("Alternates the recipe's own loop on one held batch with the ledger on and off.");
  command->callback([arguments, &exit_code] { exit_code = measure(*arguments); });
}

}  // namespace saturate
