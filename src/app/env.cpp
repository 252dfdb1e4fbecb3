// saturate env: versions and hardware, for a bug report.
#include <fmt/format.h>

#include "app/command.h"
#include "trace/host.h"

namespace saturate {
namespace {

int print_env() {
  for (const auto& [name, value] : host_facts()) fmt::print("{:<14}{}\n", name, value);
  return 0;
}

}  // namespace

void add_env(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("env", "Print versions and hardware, for a bug report");
  command->callback([&exit_code] { exit_code = print_env(); });
}

}  // namespace saturate
