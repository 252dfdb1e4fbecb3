// saturate train: a run from a recipe.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "advise/source_recipe.h"
#include "app/command.h"
#include "app/run_folder.h"
#include "base/cancel.h"
#include "base/printable.h"
#include "reduce/binding.h"
#include "reduce/heartbeat.h"
#include "run/checkpoint.h"
#include "run/made_folder.h"
#include "run/setup.h"
#include "run/training_parts.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/world.h"
#include "saturate/group.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

struct TrainArguments {
  FolderRequest folder;
  std::vector<std::string> overrides;
  bool quiet = false, print_recipe = false, changed_data = false;
};

// A read that hangs in the system, as of a network file system whose server is away, cannot be
// cancelled, and its thread cannot be joined. So a process whose interrupted run is saved, and
// whose loaders do not stop within 10 s, ends without them.
class EndWithoutReads : public Observer {
 public:
  void at_end(const EndEvent& event, ObserverContext&) override {
    if (event.end != RunEnd::kInterrupted) return;
    try {
      waiting_ = std::jthread(wait);
    } catch (const std::system_error&) {  // no more threads
    }
  }
  // The loaders have stopped.
  void disarm() { waiting_ = {}; }

 private:
  static void wait(const std::stop_token& stop) {
    using namespace std::chrono_literals;
    for (const auto until = std::chrono::steady_clock::now() + 10s;
         std::chrono::steady_clock::now() < until; std::this_thread::sleep_for(50ms))
      if (stop.stop_requested()) return;
    print_log(LogLevel::kWarning, "saturate",
              "the run is saved, but a read of its data hangs: ending without it. Look at the "
              "storage under data.source and data.eval_source");
    std::fflush(stdout);
    _exit(interrupted_code());
  }

  std::jthread waiting_;
};

// The program's name as called, each line indented by two spaces. The folder's recipe includes the
// changes of --set. URLs are without their queries, which may be secret.
std::string next_commands(const TrainResult& result, const Recipe& recipe,
                          const std::string& folder) {
  const std::string& held_out =
      recipe.data.eval_source.empty() ? recipe.data.source : recipe.data.eval_source;
  const std::string next = "  " + shell_word(program_invocation_name), run = shell_word(folder);
  const std::string report = fmt::format("{} report {}\n", next, run);
  if (result.end != RunEnd::kDone && result.end != RunEnd::kEarlyStop)
    return fmt::format("\nnext:\n{} train --resume {}\n", next, run) + report;
  return "\nnext:\n" + report +
         fmt::format("{} eval {} --data {}\n", next, run, shell_word(without_queries(held_out))) +
         fmt::format("{} data inspect {}\n", next,
                     shell_word(without_queries(recipe.data.source))) +
         fmt::format("{} train {} --set optimizer.lr={:g} --set train.epochs={:g}\n", next,
                     shell_word(folder + "/recipe.toml"), recipe.optimizer.lr / 2,
                     recipe.train.epochs * 2);
}

// Generates and prints a recipe for images given instead of one.
Recipe made_recipe(Env& env, const TrainArguments& arguments) {
  const auto& overrides = arguments.overrides;
  // Does not initialise CUDA, which is too early for a process among several.
  auto settings =
      settings_for_source(env, arguments.folder.recipe, !gpus_of_machine().empty(), overrides);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  const Recipe recipe = parse_recipe("", arguments.folder.recipe, settings);
  if (arguments.quiet || arguments.print_recipe || this_world().rank > 0) return recipe;
  std::string lines = recipe_lines(recipe, settings);
  if (lines.ends_with('\n')) lines.pop_back();
  print_log(LogLevel::kInfo, "",
            fmt::format("a recipe for {}; the run's folder holds it with all keys:\n{}",
                        printable(arguments.folder.recipe), lines));
  if (recipe.data.eval_source.empty())
    print_log(LogLevel::kInfo, "",
              "no evaluation: too few samples, in all or of a class, to hold any out; use --set "
              "data.eval_source=SOURCE");
  return recipe;
}

// The recipe that a run's checkpoints hold, for one whose recipe.toml is lost or damaged.
// `damaged`: its path; empty for a checkpoint in no run's folder.
std::optional<Recipe> recipe_of_checkpoint(Env& env, const TrainArguments& arguments,
                                           const std::string& damaged, const std::string& reason) {
  Checkpoint checkpoint;
  std::string path;
  try {
    checkpoint = find_checkpoint(
        env, resumed_path(arguments.folder), [](const std::string&) {}, &path);
  } catch (const Error&) {
    if (damaged.empty()) throw;
    return std::nullopt;
  }
  if (this_world().rank == 0 && !damaged.empty())
    print_warning(fmt::format("{} cannot be used ({}): the recipe in {} takes its place", damaged,
                              reason, path));
  return parse_saved_recipe(checkpoint.recipe_toml, path, arguments.overrides);
}

Recipe recipe_of(Env& env, const TrainArguments& arguments) {
  const std::string& given = arguments.folder.recipe;
  if (!given.empty() && names_source(env, given)) return made_recipe(env, arguments);
  const std::string path = recipe_path(env, arguments.folder);
  if (const auto reason = given.empty() ? recipe_damage(env, path) : ""; !reason.empty())
    if (const auto saved = recipe_of_checkpoint(env, arguments, path, reason)) return *saved;
  return given.empty() ? load_saved_recipe(env, path, arguments.overrides)
                       : load_recipe(env, path, arguments.overrides);
}

int print_recipe(Env& env, const Recipe& recipe) {
  const auto data = open_dataset(env, recipe.data.source, recipe.data.store_options());
  const at::Device device = resolve_device(recipe.train.device);
  Recipe resolved = resolve_recipe(recipe, *data, device);
  resolve_metrics(resolved, *make_task(resolved.train, resolved.model.classes, {}));
  const bool searches = recipe.train.batch == kAutomatic;
  const auto resident = searches ? put_on_device(resolved, train_loader_options(resolved), *data,
                                                 recipe.data.source, device)
                                 : nullptr;
  fmt::print("{}", to_toml(resolve_batch(env, resolved, *data, device)));
  // A comment for tools/compile_step.py and for people, since shapes are not keys of a recipe.
  if (const auto fields = batch_fields(*data, resolved.augment); !fields.empty())
    fmt::print("# {}\n", shapes_text(fields));
  return 0;
}

// Rank 0 chooses for all, and makes it.
void choose_folder(Env& env, const TrainArguments& arguments, TrainerOptions& options,
                   std::optional<MadeFolder>& made) {
  RunFolder chosen;
  if (!options.group || options.group->rank() == 0) {
    chosen = choose_run_folder(env, arguments.folder);
    made.emplace(env, chosen.out, chosen.made);
    // Not for a run that resumes from an older checkpoint: its new branch is recorded after set-up,
    // and a restart before that must resume from that checkpoint again. The lock protects the note
    // of a run in progress.
    if (!chosen.resume || *chosen.resume == chosen.out) {
      const auto lock = env.lock(chosen.out + kFolderLock);
      note_run_folder(env, chosen.out);
    }
  }
  if (options.group) {
    chosen.out = options.group->text_of_first(chosen.out);
    const std::string resume = options.group->text_of_first(chosen.resume.value_or(""));
    if (!resume.empty()) chosen.resume = resume;
  }
  options.out = chosen.out;
  options.resume = chosen.resume;
}

// Chooses the folder and makes the trainer; null if a signal stopped that, for example while
// copying data. A start that fails, and a resume of a run that had ended, remove the folder if they
// made it: once `made` is destroyed, after the trainer.
std::unique_ptr<Trainer> set_up(Env& env, const Recipe& recipe, const TrainArguments& arguments,
                                TrainerOptions& options, std::optional<MadeFolder>& made) {
  const CancelScope scope([] { return stop_signal() != 0; });
  try {
    choose_folder(env, arguments, options, made);
    auto trainer = std::make_unique<Trainer>(env, recipe, options);
    if (trainer->so_far().was_finished)
      options.out = run_folder_of(env, *options.resume);
    else if (made)
      made->keep();
    return trainer;
  } catch (const std::exception& error) {
    if (made && made->is_new()) report_folder("");
    const auto* known = dynamic_cast<const Error*>(&error);
    if (stop_signal() == 0 || !known) throw;
    if (options.group) options.group->report_failure("it was stopped");
    print_log(LogLevel::kInfo, "saturate",
              known->reason() == kCancelledWait ? "stopped before the first step. Run it again"
                                                : printable(error.what()));
    return nullptr;
  }
}

void print_result(const TrainResult& result, const Trainer& trainer, const std::string& folder) {
  fmt::print("{}\n", format_summary(result));
  // Not of a checkpoint alone. The result counts, not whether the storage still answers.
  std::error_code unknown;
  const bool is_run = !folder.empty() && std::filesystem::exists(folder + "/recipe.toml", unknown);
  if (is_run) fmt::print("run folder  {}\n", printable(folder));
  if (result.checkpoint.empty()) return;
  fmt::print("checkpoint  {}\n", printable(result.checkpoint));
  if (is_run) fmt::print("{}", next_commands(result, trainer.recipe(), folder));
}

int run(Env& env, const Recipe& recipe, const TrainArguments& arguments, TrainerOptions& options) {
  const bool first = !options.group || options.group->rank() == 0;
  if (arguments.quiet) options.progress = Progress::Style::kSilent;
  const auto reads = std::make_shared<EndWithoutReads>();
  options.observers = {reads};
  std::optional<MadeFolder> made;
  const auto trainer = set_up(env, recipe, arguments, options, made);
  if (!trainer) return interrupted_code();
  if (first && !trainer->so_far().was_finished) note_run_folder(env, options.out);
  TrainResult result;
  try {
    result = trainer->run();
    reads->disarm();
  } catch (...) {
    reads->disarm();
    const TrainResult failed = trainer->so_far();
    try {
      if (first && failed.steps_here > 0) print_result(failed, *trainer, options.out);
    } catch (const std::system_error&) {  // the run's own failure is the one worth reporting
    }
    throw;
  }
  try {
    if (first) print_result(result, *trainer, options.out);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::broken_pipe) throw;
    std::clearerr(stdout);  // nobody reads it: a launcher would restart a run that is done
  }
  return result.end == RunEnd::kInterrupted ? interrupted_code() : 0;
}

int train(const TrainArguments& arguments) {
  Env& env = Env::posix();
  const Recipe recipe = recipe_of(env, arguments);
  if (arguments.print_recipe) return print_recipe(env, recipe);
  TrainerOptions options;
  options.changed_data = arguments.changed_data;
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
  const auto [command, arguments] = add_command<TrainArguments>(
      app, exit_code, "train", "Train a model from a recipe, or on a folder of images", train);
  command.add_option("RECIPE", arguments.folder.recipe,
                     "Recipe file, or the name of one that comes with saturate (with --resume, the "
                     "run's own by default); or images to make a recipe for: a folder, or a "
                     "source as data.source");
  add_settings(command, arguments.overrides);
  command.add_option("--out", arguments.folder.out, "The run's folder (default runs/RECIPE-N)")
      ->transform(without_missing);
  command.add_option(
      "--resume", arguments.folder.resume,
      "A run folder or checkpoint to resume, by default in the same folder; auto: resumes the run "
      "in --out (default: the newest runs/RECIPE-N) if it has a checkpoint, else starts it");
  command
      .add_flag("--allow-changed-data", arguments.changed_data,
                "With --resume: accepts changed training data: another number of images, renamed "
                "classes, or replaced objects of a store")
      ->needs(command.get_option("--resume"));
  command.add_flag("--quiet", arguments.quiet, "No progress, only the summary");
  command.add_flag(
      "--print-recipe", arguments.print_recipe,
      "Only prints the recipe, with everything that depends on data and machine resolved");
  command.footer("`saturate list options` prints every key of a recipe.");
}

}  // namespace saturate
