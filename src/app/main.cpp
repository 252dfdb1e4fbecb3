// The command line: dispatches to one file per command, and turns every failure into one line on
// stderr and the exit code of its kind.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <csignal>

#include "app/command.h"
#include "saturate/error.h"
#include "saturate/registry.h"
#include "saturate/version.h"

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 2 bad usage or recipe; 3 bad data; 4 the run failed; 130/143 stopped by\n"
    "SIGINT/SIGTERM (SIGUSR1 counts as SIGTERM) after saving a checkpoint.";

int report(int code, const std::string& message) {
  fmt::print(stderr, "saturate: error: {}\n", message);
  return code;
}

// CLI11 says of a command that there is not only that one is missing.
void require_known_commands(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-' && at->get_require_subcommand_min() > 0; ++i) {
    std::vector<std::string> known;
    const CLI::App* found = nullptr;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_name() == argv[i]) found = command;
      if (!command->get_group().empty()) known.push_back(command->get_name());
    }
    if (!found)
      saturate::fail(saturate::ErrorKind::kUsage,
                     std::string("there is no command \"") + argv[i] + "\"", at->get_name(),
                     saturate::suggest(argv[i], known));
    at = found;
  }
}

// One line out of a message that may have many.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

int run(int argc, char** argv) {
  CLI::App app(
      "Trains vision models on LibTorch, keeps the hardware busy and says where time goes.",
      "saturate");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("saturate ") + saturate::kVersion);
  app.get_formatter()->column_width(36);
  int exit_code = 0;
  saturate::add_train(app, exit_code);
  saturate::add_launch(app, exit_code);
  saturate::add_eval(app, exit_code);
  saturate::add_data(app, exit_code);
  saturate::add_bench(app, exit_code);
  saturate::add_ladder(app, exit_code);
  saturate::add_sweep(app, exit_code);
  saturate::add_diagnose(app, exit_code);
  saturate::add_tune(app, exit_code);
  saturate::add_report(app, exit_code);
  saturate::add_export(app, exit_code);
  saturate::add_list(app, exit_code);
  saturate::add_env(app, exit_code);
  require_known_commands(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(2, first_line(error.what()) + ". Run saturate --help, or a command with --help");
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that may grow no further (ulimit -f) is then an error like a full disk, not a crash.
  std::signal(SIGXFSZ, SIG_IGN);
  const int run_failed = static_cast<int>(saturate::ErrorKind::kRun);
  try {
    return run(argc, argv);
  } catch (const saturate::Error& error) {
    return report(error.exit_code(), error.what());
  } catch (const c10::Error& error) {
    return report(run_failed, "LibTorch: " + first_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return report(run_failed, "out of memory. Lower train.batch or data.prefetch");
  } catch (const std::exception& error) {
    return report(run_failed, first_line(error.what()));
  }
}
