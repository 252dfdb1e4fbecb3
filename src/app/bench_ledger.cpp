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
  if (!found) return interrupted_code();
  const Gain gain = paired_gain(found->on, found->off);
  BenchReport report{
      "ledger", {{"ledger on", "images/s", found->on}, {"ledger off", "images/s", found->off}}};
  report.rows[1].keys = {{"gain", gain.ratio}, {"low", gain.low}, {"high", gain.high}};
  print_report(report);
  fmt::print("\nwithout the ledger: {:+.2f} % images/s (95 % interval {:+.2f} to {:+.2f})\n",
             100 * (gain.ratio - 1), 100 * (gain.low - 1), 100 * (gain.high - 1));
  write_report(arguments.json, report);
  return 0;
}

}  // namespace

void add_bench_ledger(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<LedgerArguments>(
      bench, exit_code, "ledger", "The cost of the ledger in a recipe's step", measure);
  command
      .add_option("RECIPE", arguments.recipe,
                  "Recipe file, or the name of one that comes with saturate")
      ->required();
  add_settings(command, arguments.overrides);
  add_number(command, "--rounds", arguments.options.rounds, 2, 1000, "Measurements of each");
  add_number(command, "--seconds", arguments.options.seconds, 0.01, 3600.0,
             "Minimum length of one measurement");
  add_json_option(command, arguments.json);
  command.footer("Alternates the recipe's own loop on one held batch with the ledger on and off.");
}

}  // namespace saturate
