// Commands: each file adds its options and its action to CLI11's parser.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"

namespace saturate {

class Group;

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

// From now on the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP (unless it is ignored, as under nohup)
// is only recorded; a further SIGINT ends the process at once. After SIGHUP, terminal descriptors
// are redirected to /dev/null.
void catch_stop_signals();
// The same for a command that writes a file, which is removed if incomplete.
void catch_stop_signals_of_writing();
// The recorded signal (SIGTERM for SIGUSR1 and SIGHUP), or 0. Safe from any thread.
int stop_signal();
// The same, but SIGHUP as it is: other processes are to know that the terminal is gone.
int signal_to_pass_on();

// Binds this process to its part of the machine, and waits for the others; null if it is alone.
std::shared_ptr<Group> join_group(const Recipe& recipe);

// `settings` ("section.key=value") that differ from `recipe`, as lines for a recipe file: indented,
// under their sections' headers. Fails as parse_recipe() does.
std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings);

}  // namespace saturate
