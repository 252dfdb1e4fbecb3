// Commands: each file adds its options and its action to CLI11's parser.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/files.h"
#include "base/printable.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

class Group;
struct Checkpoint;

// Each adds a subcommand whose callback stores the process's exit code in `exit_code`.
void add_train(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
// Benchmarks, under add_bench()'s command.
void add_bench_storage(CLI::App& bench, int& exit_code);
void add_bench_augment(CLI::App& bench, int& exit_code);
void add_bench_step(CLI::App& bench, int& exit_code);
void add_bench_memory(CLI::App& bench, int& exit_code);
void add_bench_ledger(CLI::App& bench, int& exit_code);
void add_bench_allreduce(CLI::App& bench, int& exit_code);
void add_launch(CLI::App& app, int& exit_code);
void add_ladder(CLI::App& app, int& exit_code);
void add_sweep(CLI::App& app, int& exit_code);
void add_diagnose(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_list(CLI::App& app, int& exit_code);
void add_env(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);

// Adds a command that fills an Arguments, beginning as `defaults`, and stores the exit code of
// `run`. Returns the command and its arguments, for which options are then added.
template <class Arguments>
std::pair<CLI::App&, Arguments&> add_command(CLI::App& app, int& exit_code, const char* name,
                                             const char* doc, int (*run)(const Arguments&),
                                             const Arguments& defaults = {}) {
  const auto arguments = std::make_shared<Arguments>(defaults);
  CLI::App* const command = app.add_subcommand(name, doc);
  command->callback([arguments, run, &exit_code] { exit_code = run(*arguments); });
  return {*command, *arguments};
}

// An option whose help shows the default and the range; for a list, the range of each number.
template <class Value, class Bound>
CLI::Option* add_number(CLI::App& command, const char* name, Value& value, Bound least, Bound most,
                        const char* doc) {
  return command.add_option(name, value, doc)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
}

// RECIPE, which is required.
void add_recipe(CLI::App& command, std::string& recipe);
// --set or a similar option, which may be repeated.
CLI::Option* add_settings(
    CLI::App& command, std::vector<std::string>& settings, const char* name = "--set",
    const char* doc = "section.key=value: overrides the recipe; may be repeated");

// CHECKPOINT, --best and --plain.
struct SavedModelArguments {
  std::string checkpoint;
  bool best = false, plain = false;
};
void add_saved_model(CLI::App& command, SavedModelArguments& arguments);
// Sets `path` to the file that was chosen.
Checkpoint read_saved_model(Env& env, const SavedModelArguments& arguments, std::string& path);

// From now on the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP (unless it is ignored, as under nohup)
// is only recorded; a further SIGINT ends the process at once. After SIGHUP, terminal descriptors
// are redirected to /dev/null.
void catch_stop_signals();
// The same for a command that writes a file. `then`: what the message of a signal says is done with
// the unfinished file, by default that it is removed.
void catch_stop_signals_of_writing(const char* then = "removing unfinished output");
// The recorded signal (SIGTERM for SIGUSR1 and SIGHUP), or 0. Safe from any thread.
int stop_signal();
// The same, but SIGHUP as it is: other processes must learn that the terminal closed.
int signal_to_pass_on();
// The exit code of a command that a signal stopped, here or, if none was recorded, in another
// process.
int interrupted_code();

// Thrown by require_running() out of a command, which then ends with interrupted_code().
struct Stopped {};
void require_running();

// Calls body(). A signal cancels its waits for stores, and then ends the command as
// require_running() does; any other failure after the signal is printed before.
template <class Body>
auto until_stopped(const Body& body) {
  const CancelScope scope([] { return stop_signal() != 0; });
  try {
    return body();
  } catch (const Error& error) {
    if (stop_signal() == 0) throw;
    if (error.reason() != kCancelledWait)
      print_log(LogLevel::kInfo, "saturate", printable(error.what()));
    throw Stopped();
  }
}

// Fails as require_writable() if the file that the command will write at its end cannot be written,
// so before its work. Does nothing for an empty path, and in all ranks but 0, which writes.
void require_output(const std::string& path);
// The same for several, which must be different files.
void require_outputs(const std::vector<std::string>& paths);

// Writes the files whose path is not empty, then calls print(): also if a file cannot be written,
// and if nobody reads what is printed, the files are there.
void write_and_print(const std::vector<TextFile>& files, const std::function<void()>& print);

// c10d logs each lost connection with a stack trace; Group reports the failure in one line.
// TORCH_CPP_LOG_LEVEL shows the log. REQUIRES: no other thread has started.
void silence_libtorch();
// Binds this process to its part of the machine, and waits for the others; null if it is alone.
std::shared_ptr<Group> join_group(const Recipe& recipe);

// `settings` ("section.key=value") that differ from `recipe`, as lines for a recipe file: indented,
// under their sections' headers. Fails as parse_recipe() does.
std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings);

}  // namespace saturate
