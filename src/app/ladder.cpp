// saturate ladder and saturate sweep: settings of a recipe, measured together.
#include "advise/ladder.h"

#include <fmt/format.h>
#include <signal.h>

#include <memory>

#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "reduce/heartbeat.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/progress.h"

namespace saturate {
namespace {

constexpr double kLongestWait = 3600;  // seconds, for another process of the ladder

struct LadderArguments {
  std::string input, json, markdown;
  std::vector<std::string> overrides, over;
  LadderOptions options;
};

void make_packs_with_progress(Env& env, const Ladder& ladder, const std::string& scratch) {
  std::optional<Progress> progress;
  make_packs(env, ladder, scratch, [&](size_t done, size_t total) {
    require_running();
    if (!progress || done == 0)
      progress.emplace(env, "pack", "samples", int64_t(total), Progress::Style::kAuto);
    progress->update(int64_t(done), "");
  });
}

LadderResult run(Env& env, const Ladder& ladder, const LadderArguments& arguments,
                 LadderOptions& options, const ProcessMeasurerOptions& processes, Group* group) {
  // Before anything that may fail: its destruction also ends the other processes' loops.
  const auto measurer = group ? make_group_measurer(env, ladder, processes, *group)
                              : make_process_measurer(env, processes);
  const std::string& scratch = processes.folder;
  const MachineFacts machine = this_machine();
  const auto recipes = ladder_recipes(env, ladder, arguments.overrides, scratch, machine);
  until_stopped([&] { make_packs_with_progress(env, ladder, scratch); });
  std::optional<Progress> progress;
  options.progress = [&](int done, int total, const std::string& what) {
    if (!progress) progress.emplace(env, "ladder", "done", total, Progress::Style::kAuto);
    progress->update(done, what);
  };
  return run_ladder(ladder, recipes, machine, options, *measurer);
}

// The processes that were started together with this one; null if there are none. A rung's own
// processes form a separate group.
std::unique_ptr<Group> join_ladder(const LadderArguments& arguments) {
  const World world = this_world();
  if (world.size == 1) return nullptr;
  DistributedOptions options;
  options.backend = CollectiveBackend::kGloo;
  options.timeout_s = kLongestWait + arguments.options.seconds;
  silence_libtorch();
  return std::make_unique<Group>(world, options, at::kCPU);
}

int measure_ladder(const Ladder& ladder, const LadderArguments& arguments) {
  require_release_build();
  require_outputs({arguments.json, arguments.markdown});
  Env& env = Env::posix();
  catch_stop_signals();
  const auto group = join_ladder(arguments);
  // The launcher takes a position that does not change for a hanging process.
  const auto begun = env.now_ns();
  const auto heartbeat = start_heartbeat([&env, begun] {
    return fmt::format("ladder, {} s", (env.now_ns() - begun) / 1'000'000'000);
  });
  const ScratchFolder scratch;
  ProcessMeasurerOptions processes;
  processes.program = "/proc/self/exe";
  processes.folder = scratch.path();
  processes.seconds = arguments.options.seconds;
  processes.should_stop = [] { return stop_signal() != 0; };
  if (group && group->rank() > 0) {
    help_measuring(env, processes, *group);
    return 0;
  }
  LadderOptions options = arguments.options;
  const LadderResult result = run(env, ladder, arguments, options, processes, group.get());
  Ladder reported = ladder;
  for (const std::string& setting : arguments.overrides) {
    std::erase_if(reported.set, [&](const std::string& former) {
      return former.substr(0, former.find('=')) == setting.substr(0, setting.find('='));
    });
    reported.set.push_back(setting);
  }
  write_and_print({{arguments.json, ladder_json(reported, result, options)},
                   {arguments.markdown, ladder_markdown(reported, result)}},
                  [&] { fmt::print("{}", format_ladder(reported, result)); });
  return result.interrupted ? interrupted_code() : 0;
}

void add_measuring(CLI::App& command, LadderArguments& arguments) {
  add_settings(
      command, arguments.overrides, "--set",
      "section.key=value: overrides the recipe, but not the compared settings; may be repeated");
  add_number(command, "--rounds", arguments.options.rounds, 1, 1000, "Measurements of each");
  add_number(command, "--seconds", arguments.options.seconds, 0.01, 3600.0,
             "Minimum length of one measurement");
  command.add_option("--json", arguments.json, "Write the results to this file too");
  command.add_option("--markdown", arguments.markdown, "The table as Markdown, to this file");
}

// The command that a ladder starts for each rung.
void add_measure_rung(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string recipe, folder;
    double seconds = 1;
  };
  const auto [command, arguments] =
      add_command<Arguments>(app, exit_code, "measure-rung", "", [](const Arguments& given) {
        signal(SIGTTOU, SIG_IGN);  // as for a launcher's ranks: it has its own group
        serve_rung(Env::posix(), given.recipe, given.folder, given.seconds, join_group);
        return 0;
      });
  command.group("");
  command.add_option("RECIPE", arguments.recipe)->required();
  command.add_option("FOLDER", arguments.folder)->required();
  command.add_option("SECONDS", arguments.seconds)->required();
}

}  // namespace

void add_ladder(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<LadderArguments>(
      app, exit_code, "ladder", "Measure the rungs of a ladder file, and the speedup of each",
      [](const LadderArguments& given) {
        return measure_ladder(load_ladder(Env::posix(), given.input), given);
      });
  command
      .add_option("LADDER", arguments.input,
                  "Ladder file, or the name of one that comes with saturate")
      ->required();
  add_measuring(command, arguments);
  command.footer(
      "docs/ladder.md describes the file; ladders/ holds examples. Rungs of several processes "
      "need\n"
      "as many: saturate launch --nproc-per-node 2 -- ladder LADDER");
  add_measure_rung(app, exit_code);
}

void add_sweep(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<LadderArguments>(
      app, exit_code, "sweep",
      "Measure a recipe's speed for each combination of values, relative to the first",
      [](const LadderArguments& given) {
        return measure_ladder(make_sweep(given.input, given.over), given);
      });
  add_recipe(command, arguments.input);
  add_settings(command, arguments.over, "--over",
               "section.key=a,b,c: values to compare; may be repeated, for all combinations")
      ->required();
  add_measuring(command, arguments);
}

}  // namespace saturate
