// saturate launch: a run of several processes.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "app/command.h"
#include "base/text.h"
#include "saturate/data/error.h"
#include "saturate/launcher.h"

namespace saturate {
namespace {

struct LaunchArguments {
  LaunchOptions options;
  std::string master;
};

// HOST:PORT, with an IPv6 address in brackets.
void parse_master(const std::string& text, LaunchOptions& options) {
  const auto colon = text.rfind(':');
  const int port = parsed_number<int>(text.substr(colon + 1)).value_or(0);
  if (colon == std::string::npos || colon == 0 || port < 1 || port > 65535)
    fail(ErrorKind::kUsage, "\"" + text + "\" is not an address", "--master",
         "Write it as HOST:PORT, such as node0:29500");
  options.master = text.substr(0, colon);
  if (options.master.front() == '[' && options.master.back() == ']')
    options.master = options.master.substr(1, options.master.size() - 2);
  options.port = port;
}

int launch_command(const LaunchArguments& arguments) {
  LaunchOptions options = arguments.options;
  if (!arguments.master.empty()) parse_master(arguments.master, options);
  if (options.nodes > 1 && arguments.master.empty())
    fail(ErrorKind::kUsage, "several machines need a rendezvous address", "--master",
         "Give the same HOST:PORT of the first machine to every launch");
  if (options.node >= options.nodes)
    fail(ErrorKind::kUsage,
         fmt::format("node {} of {} does not exist", options.node, options.nodes), "--node-rank",
         "Number the machines from 0");
  static constexpr std::string_view kCommands[] = {"train", "diagnose", "ladder"};
  if (options.arguments.empty() ||
      std::ranges::find(kCommands, options.arguments.front()) == std::end(kCommands))
    fail(ErrorKind::kUsage, "nothing to launch", "saturate launch",
         "Write -- train RECIPE.toml after the options, or -- diagnose RECIPE.toml, or -- ladder "
         "LADDER.toml");
  options.program = "/proc/self/exe";
  catch_stop_signals();
  return launch(options, signal_to_pass_on);
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<LaunchArguments>(
      app, exit_code, "launch", "Train in several processes, on this machine or several",
      launch_command);
  LaunchOptions& options = arguments.options;
  command.add_option("--nproc-per-node", options.processes, "Processes on this machine")
      ->required()
      ->check(CLI::Range(1, 4096));
  add_number(command, "--nnodes", options.nodes, 1, 65536, "Machines; run launch on each");
  add_number(command, "--node-rank", options.node, 0, 65535, "Number of this machine, from 0");
  command.add_option("--master", arguments.master,
                     "HOST:PORT of the first machine, where rank 0 (with several machines the "
                     "first launcher) listens (default: this one, any free port)");
  add_number(command, "--max-restarts", options.restarts, 0, 1000000,
             "Maximum number of restarts of all processes from the last checkpoint when one "
             "fails; with several machines, the first one's counts");
  add_number(command, "--stall", options.stall_s, 1.0, 1e6,
             "Seconds without a step before a warning");
  command.add_option("ARGUMENTS", options.arguments,
                     "-- train RECIPE.toml ..., -- diagnose RECIPE.toml ..., or -- ladder "
                     "LADDER.toml ...");
  command.positionals_at_end();
  command.footer(
      "Each process is bound to its part of the cores and GPUs. torchrun, mpirun and srun can\n"
      "start `saturate train` as well. See docs/distributed.md.");
}

}  // namespace saturate
