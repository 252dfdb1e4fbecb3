// saturate train: a run from a recipe.
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "app/command.h"
#include "app/join_group.h"
#include "reduce/heartbeat.h"
#include "run/setup.h"
#include "saturate/checkpoint.h"
#include "saturate/env.h"
#include "saturate/error.h"
#include "saturate/group.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

struct TrainArguments {
  std::string recipe, out, resume;
  std::vector<std::string> overrides;
  bool quiet = false, print_recipe = false;
};

// runs/NAME-1, runs/NAME-2, ...: the first that is free.
std::string free_run_folder(Env& env, const std::string& recipe_path) {
  const std::string stem = std::filesystem::path(recipe_path).stem().string();
  for (int i = 1;; ++i) {
    const std::string folder = fmt::format("runs/{}-{}", stem, i);
    if (!env.exists(folder)) return folder;
  }
}

// The folder of the run that `path` (a run folder, or a checkpoint within one) belongs to.
std::string run_folder_of(Env& env, const std::string& path) {
  if (env.is_directory(path)) return path;
  // A path may begin below the run folder, as one that was typed there does.
  const auto folder = (std::filesystem::path(path).parent_path() / "..").lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).string();
}

std::string choose_folder(Env& env, const TrainArguments& arguments) {
  if (!arguments.out.empty()) {
    const bool same = !arguments.resume.empty() && arguments.resume == arguments.out;
    if (!same && env.exists(arguments.out + "/metrics.jsonl"))
      fail(ErrorKind::kUsage, "the folder holds a run already", arguments.out,
           "Go on with it by --resume " + arguments.out + ", or choose another --out");
    return arguments.out;
  }
  if (!arguments.resume.empty()) return run_folder_of(env, arguments.resume);
  return free_run_folder(env, arguments.recipe);
}

std::string recipe_path(const TrainArguments& arguments, Env& env) {
  if (!arguments.recipe.empty()) return arguments.recipe;
  if (arguments.resume.empty())
    fail(ErrorKind::kUsage, "no recipe given", "saturate train",
         "Name one, as in: saturate train recipes/demo.toml");
  return run_folder_of(env, arguments.resume) + "/recipe.toml";
}

// The folder's own recipe has what --set changed, too.
std::string next_commands(const TrainResult& result, const Recipe& recipe,
                          const std::string& folder) {
  const std::string& held_out =
      recipe.data.eval_source.empty() ? recipe.data.source : recipe.data.eval_source;
  const std::string next = std::string("  ") + program_invocation_name;  // as the user called it
  if (result.end == RunEnd::kInterrupted || result.end == RunEnd::kTimeLimit)
    return fmt::format("\nnext:\n{} train --resume {}\n", next, folder);
  return fmt::format("\nnext:\n{} eval {} --data '{}'\n", next, folder, held_out) +
         fmt::format("{} data inspect '{}'\n", next, recipe.data.source) +
         fmt::format("{} train {}/recipe.toml --set optimizer.lr={:g} --set train.epochs={:g}\n",
                     next, folder, recipe.optimizer.lr / 2, recipe.train.epochs * 2);
}

// A run that is stopped while it is still being set up, as in copying data.
std::unique_ptr<Trainer> set_up(Env& env, const Recipe& recipe, const TrainerOptions& options) {
  try {
    return std::make_unique<Trainer>(env, recipe, options);
  } catch (const Error& error) {
    if (stop_signal() == 0) throw;
    if (options.group) options.group->report_failure("it was stopped");
    fmt::print(stderr, "saturate: {}\n", error.what());
    return nullptr;
  }
}

int print_recipe(Env& env, const Recipe& recipe) {
  const auto data = open_dataset(env, recipe.data.source);
  const at::Device device = resolve_device(recipe.train.device);
  const Recipe resolved = resolve_recipe(recipe, *data, device);
  fmt::print("{}", to_toml(resolve_batch(env, resolved, *data, device)));
  return 0;
}

// Where a launcher starts a failed run again: in the same folder, from its last checkpoint if it
// has one, else from where it was told to begin.
bool choose_restart(Env& env, const TrainArguments& arguments, TrainerOptions& options) {
  const char* const folder = std::getenv("SATURATE_RESTART_FOLDER");
  if (!folder) return false;
  options.out = folder;
  const std::string checkpoints = options.out + "/checkpoints";
  if (env.exists(checkpoints) && !list_checkpoints(env, checkpoints).empty())
    options.resume = options.out;
  else if (!arguments.resume.empty())
    options.resume = arguments.resume;
  return true;
}

// Rank 0 chooses, for all.
void choose_folders(Env& env, const TrainArguments& arguments, TrainerOptions& options) {
  const bool first = !options.group || options.group->rank() == 0;
  if (first && !choose_restart(env, arguments, options)) {
    options.out = choose_folder(env, arguments);
    if (!arguments.resume.empty()) options.resume = arguments.resume;
  }
  if (first) {
    env.make_directories(options.out);
    report_folder(options.out);
  }
  if (!options.group) return;
  options.out = options.group->text_of_first(options.out);
  const std::string resume = options.group->text_of_first(options.resume.value_or(""));
  if (!resume.empty()) options.resume = resume;
}

// Where the signal came to another process, that one's code is as good as any.
int interrupted_code() {
  return 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM);
}

int run(Env& env, const Recipe& recipe, const TrainArguments& arguments, TrainerOptions& options) {
  choose_folders(env, arguments, options);
  const bool first = !options.group || options.group->rank() == 0;
  if (arguments.quiet) options.progress = Progress::Style::kSilent;
  const auto trainer = set_up(env, recipe, options);
  if (!trainer) return interrupted_code();
  if (first && !arguments.quiet)
    fmt::print(stderr, "{} on {}, {} images/step{}, run folder {}\n", trainer->recipe().model.name,
               trainer->recipe().data.source, trainer->recipe().train.batch,
               options.group ? fmt::format(" over {} processes", options.group->world()) : "",
               options.out);
  const TrainResult result = trainer->run();
  if (first) {
    fmt::print("{}", format_summary(result));
    fmt::print("\nrun folder  {}\ncheckpoint  {}\n", options.out, result.checkpoint);
    fmt::print("{}", next_commands(result, trainer->recipe(), options.out));
  }
  return result.end == RunEnd::kInterrupted ? interrupted_code() : 0;
}

int train(const TrainArguments& arguments) {
  Env& env = Env::posix();
  const Recipe recipe = load_recipe(env, recipe_path(arguments, env), arguments.overrides);
  if (arguments.print_recipe) return print_recipe(env, recipe);
  TrainerOptions options;
  options.group = join_group(recipe);
  catch_stop_signals();
  options.should_stop = [] { return stop_signal() != 0; };
  try {
    return run(env, recipe, arguments, options);
  } catch (const std::exception& error) {
    if (options.group) options.group->report_failure(error.what());
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model from a recipe");
  command->add_option("RECIPE", arguments->recipe,
                      "Recipe file; with --resume, the run's own if left out");
  command
      ->add_option("--set", arguments->overrides,
                   "section.key=value: overrides the recipe; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--out", arguments->out, "The run's folder (default runs/RECIPE-N)");
  command->add_option("--resume", arguments->resume,
                      "A run folder or checkpoint to go on from, by default in the same folder");
  command->add_flag("--quiet", arguments->quiet, "No progress, only the summary");
  command->add_flag("--print-recipe", arguments->print_recipe,
                    "Only prints the recipe, with all that depends on data and machine resolved");
  command->footer("`saturate list options` prints every key of a recipe.");
  command->callback([arguments, &exit_code] { exit_code = train(*arguments); });
}

}  // namespace saturate
