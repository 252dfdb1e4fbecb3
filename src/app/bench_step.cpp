// saturate bench step: a recipe's step, compared with its lower bounds. saturate bench ledger: the
// cost of accounting time by phase.
#include <fmt/format.h>

#include <algorithm>

#include "advise/step_bench.h"
#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/printable.h"
#include "record/json_fields.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

struct StepArguments {
  std::string recipe = {}, json = {};
  std::vector<std::string> overrides = {};
  StepBenchOptions options = {};
};

// One value per round.
template <class Value>
std::vector<double> values_of(const std::vector<StepTiming>& timings, const Value& value) {
  std::vector<double> values;
  for (const StepTiming& timing : timings) values.push_back(value(timing));
  return values;
}

template <class Value>
double median_over(const std::vector<StepTiming>& timings, const Value& value) {
  return median_of(values_of(timings, value));
}

// Milliseconds per step of each phase in the step.
nlohmann::ordered_json phases_ms(const std::vector<StepTiming>& timings) {
  nlohmann::ordered_json phases = nlohmann::ordered_json::object();
  for (int i = 0; i < kPhaseCount; ++i) {
    const double ms = median_over(timings, [&](const StepTiming& timing) {
      return 1e3 * timing.phases[Phase(i)] / double(timing.steps);
    });
    if (ms > 0) phases[std::string(phase_name(Phase(i)))] = ms;
  }
  return phases;
}

BenchRow speed_row(const std::string& name, const std::vector<StepTiming>& timings, int batch) {
  BenchRow row{name, "images/s",
               values_of(timings, [](const StepTiming& timing) { return timing.images_per_s(); })};
  const double s_per_step =
      median_over(timings, [&](const StepTiming& timing) { return timing.s_per_step(batch); });
  row.keys["ms_per_step"] = 1e3 * s_per_step;
  row.keys["steps_per_s"] = 1 / s_per_step;
  row.keys["cores_used"] =
      median_over(timings, [](const StepTiming& timing) { return timing.cpu_s / timing.wall_s; });
  return row;
}

// The time of `more` minus that of `less` in the same round.
BenchRow difference_row(const std::string& name, const std::vector<StepTiming>& more,
                        const std::vector<StepTiming>& less, int batch) {
  BenchRow row{name, "us/step", {}};
  std::vector<double> percent;
  for (size_t i = 0; i < more.size(); ++i) {
    const double longer = more[i].s_per_step(batch), shorter = less[i].s_per_step(batch);
    row.values.push_back(1e6 * (longer - shorter));
    percent.push_back(100 * (longer / shorter - 1));
  }
  row.keys["percent"] = median_of(percent);
  return row;
}

BenchRow whole_row(const StepBench& found) {
  const Recipe& recipe = found.recipe;
  BenchRow row = speed_row("recipe", found.whole, recipe.train.batch);
  row.keys["phases_ms"] = phases_ms(found.whole);
  row.keys["memory_peak_bytes"] = found.memory_peak_bytes;
  row.keys["model"] = recipe.model.name;
  row.keys["size"] = recipe.augment.of_epoch(0).size;
  row.keys["batch"] = recipe.train.batch;
  row.keys["threads"] = recipe.train.threads;
  row.keys["recipe"] = without_queries(to_toml(recipe));
  return row;
}

// Share of a step on the held batch.
BenchRow library_row(const std::string& name, double library_s, const StepBench& found) {
  const double step_s = median_over(found.held, [&](const StepTiming& timing) {
    return timing.s_per_step(found.recipe.train.batch);
  });
  BenchRow row{name, "% of step", {100 * library_s / step_s}};
  row.keys["ms_per_step"] = 1e3 * library_s;
  return row;
}

// Upper bound in images/s: on a CPU input and compute each use all cores for their share of the
// time; on a GPU they overlap, and the slower one limits.
double bound_of(const StepTiming& input, const StepTiming& held, bool on_gpu) {
  const double a = input.images_per_s(), b = held.images_per_s();
  return on_gpu ? std::min(a, b) : 1 / (1 / a + 1 / b);
}

BenchRow bound_row(const StepBench& found) {
  BenchRow row{"of the bound", "%", {}};
  std::vector<double> bounds;
  for (size_t i = 0; i < found.whole.size(); ++i) {
    bounds.push_back(bound_of(found.input[i], found.held[i], found.recipe.train.device == "cuda"));
    row.values.push_back(100 * found.whole[i].images_per_s() / bounds.back());
  }
  row.keys["bound_images_per_s"] = median_of(bounds);
  return row;
}

BenchReport report_of(const StepBench& found) {
  const int batch = found.recipe.train.batch;
  BenchReport report{"step", {whole_row(found)}};
  report.rows.push_back(speed_row("held batch", found.held, batch));
  report.rows.back().keys["phases_ms"] = phases_ms(found.held);
  report.rows.push_back(speed_row("bare loop", found.bare, batch));
  report.rows.push_back(difference_row("host overhead", found.held, found.bare, batch));
  report.rows.push_back(difference_row("input", found.whole, found.held, batch));
  report.rows.push_back(speed_row("input alone", found.input, batch));
  report.rows.push_back(bound_row(found));
  if (found.libraries) {
    report.rows.push_back(library_row("oneDNN", found.libraries->onednn_s, found));
    report.rows.push_back(library_row("MKL", found.libraries->mkl_s, found));
    for (const auto& [kind, seconds] : found.libraries->kinds)
      report.rows.push_back(library_row("  " + kind, seconds, found));
  }
  return report;
}

// The table, and details without a column in it.
void print_details(const BenchReport& report) {
  print_report(report);
  for (const BenchRow& row : report.rows) {
    const auto& keys = row.keys;
    if (keys.contains("percent"))
      fmt::print("\n{}: {:.1f} us a step, {:.2f} %", row.name, median_of(row.values),
                 keys["percent"].get<double>());
    if (!keys.contains("phases_ms")) continue;
    fmt::print("\n{}: {:.3f} ms a step, {:.2f} cores in use\n", row.name,
               keys["ms_per_step"].get<double>(), keys["cores_used"].get<double>());
    for (const auto& [phase, ms] : keys["phases_ms"].items())
      fmt::print("  {:<12}{:>10.3f} ms\n", phase, ms.get<double>());
  }
  fmt::print("\npeak memory: {:.2f} GiB\n",
             report.rows[0].keys["memory_peak_bytes"].get<double>() / (1 << 30));
}

// The result of `bench`, of step_bench.h; empty if a signal cancelled it.
template <class Bench>
auto run_bench(const StepArguments& arguments, const Bench& bench) {
  require_release_build();
  Env& env = Env::posix();
  const Recipe recipe = load_recipe(env, arguments.recipe, arguments.overrides);
  catch_stop_signals();
  const ScratchFolder folder;
  StepBenchOptions options = arguments.options;
  options.folder = folder.path();
  options.should_stop = [] { return stop_signal() != 0; };
  return until_stopped([&] { return bench(env, recipe, options); });
}

int measure_step(const StepArguments& arguments) {
  const auto found = run_bench(arguments, bench_step);
  if (!found) return interrupted_code();
  const BenchReport report = report_of(*found);
  return publish(report, arguments.json, print_details);
}

int measure_ledger(const StepArguments& arguments) {
  const auto found = run_bench(arguments, bench_ledger);
  if (!found) return interrupted_code();
  const Gain gain = found->gain();
  BenchReport report{
      "ledger",
      {{"ledger on", "images/s", found->before}, {"ledger off", "images/s", found->after}}};
  report.rows[1].keys = {{"gain", gain.ratio}, {"low", gain.low}, {"high", gain.high}};
  return publish(report, arguments.json, [&](const BenchReport&) {
    print_report(report);
    fmt::print("\nwithout the ledger: {:+.2f} % images/s (95 % interval {:+.2f} to {:+.2f})\n",
               100 * (gain.ratio - 1), 100 * (gain.low - 1), 100 * (gain.high - 1));
  });
}

constexpr const char* kFooter =
    "Interleaves the recipe's own training loop (recipe), the same on one batch with the loader\n"
    "paused (held batch), a bare LibTorch loop with the fused optimizer on that batch (bare loop)\n"
    "and the loader without steps (input alone). Host overhead is the second's time minus the\n"
    "third's, input the first's minus the second's. The bound is the rate of input and compute on\n"
    "the same cores without interference; on a GPU, the slower of the two.";

void add_bench_arguments(CLI::App& command, StepArguments& arguments, int least_rounds,
                         const char* rounds_doc) {
  add_recipe(command, arguments.recipe);
  add_settings(command, arguments.overrides);
  add_number(command, "--rounds", arguments.options.rounds, least_rounds, 1000, rounds_doc);
  add_number(command, "--seconds", arguments.options.seconds, 0.01, 3600.0,
             "Minimum length of one measurement");
}

}  // namespace

void add_bench_step(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<StepArguments>(
      bench, exit_code, "step", "The cost of a recipe's step, and its overhead", measure_step);
  add_bench_arguments(command, arguments, 1, "Measurements of each loop");
  command.add_flag("--profile", arguments.options.profile,
                   "Also measure the share of a step within oneDNN and MKL, from their logs");
  add_json_option(command, arguments.json);
  command.footer(kFooter);
}

void add_bench_ledger(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<StepArguments>(
      bench, exit_code, "ledger", "The cost of the ledger in a recipe's step", measure_ledger,
      {.options = {.rounds = 20, .seconds = 0.5}});
  add_bench_arguments(command, arguments, 2, "Measurements of each");
  add_json_option(command, arguments.json);
  command.footer("Alternates the recipe's own loop on one held batch with the ledger on and off.");
}

}  // namespace saturate
