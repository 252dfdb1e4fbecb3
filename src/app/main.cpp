// The command line: dispatches to one file per command, and reports every failure as one line on
// stderr and the exit code of its kind.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <string_view>
#include <system_error>

#include "app/command.h"
#include "base/printable.h"
#include "run/batch_search.h"
#include "saturate/data/error.h"
#include "saturate/data/registry.h"
#include "saturate/data/world.h"

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 2 bad usage or recipe; 3 bad data; 4 the run failed; 130/143 stopped by\n"
    "SIGINT/SIGTERM (SIGUSR1 and SIGHUP count as SIGTERM) after saving a checkpoint.";

int report(int code, const std::string& message) {
  saturate::print_log(saturate::LogLevel::kError, "saturate", saturate::printable(message));
  return code;
}

// Allocates no memory.
int report_no_memory(int code) {
  const bool json = saturate::logs_json();
  std::fputs(json ? "{\"level\":\"error\",\"message\":\"" : "saturate: error: ", stderr);
  std::fputs(
      "out of memory. Lower train.batch, data.prefetch or data.threads, or raise the limit "
      "(ulimit -v)",
      stderr);
  std::fputs(json ? "\"}\n" : "\n", stderr);
  return code;
}

// LibTorch's messages name no remedy.
int report_libtorch(int code, const c10::Error& error) {
  std::string text = saturate::first_line(error.what_without_backtrace());
  if (text.ends_with('.')) text.pop_back();
  return report(code, "LibTorch: " + text +
                          (saturate::is_size_error(error)
                               ? ". Lower train.batch or train.eval_batch"
                               : ". Report it with the command and what `saturate env` prints"));
}

// Takes --log-format out of the arguments, wherever it stands before "--", and returns how many are
// left: the format holds for this process and all that it starts.
int take_log_format(int argc, char** argv) {
  constexpr std::string_view kOption = "--log-format";
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (text == "--") {
      while (i < argc) argv[kept++] = argv[i++];
      break;
    }
    const bool has_value =
        text.starts_with(kOption) && text.substr(kOption.size()).starts_with('=');
    if (text != kOption && !has_value) {
      argv[kept++] = argv[i];
      continue;
    }
    if (!has_value) ++i;
    const std::string value = has_value  ? std::string(text.substr(kOption.size() + 1))
                              : i < argc ? argv[i]
                                         : "";
    if (value != "text" && value != "json")
      saturate::fail(saturate::ErrorKind::kUsage, "unknown log format \"" + value + "\"",
                     std::string(kOption), "Use text or json");
    setenv(saturate::kLogFormatVariable, value.c_str(), 1);
  }
  argv[kept] = nullptr;
  return kept;
}

constexpr const char* kNoThreads =
    "the system cannot start more threads. Raise the limit of processes (ulimit -u) or of memory "
    "(ulimit -v), or lower data.threads and train.threads";

std::terminate_handler standard_end;

[[noreturn]] void end_without_handler() {
  if (std::current_exception()) try {
      throw;
    } catch (const std::bad_alloc&) {
      _exit(report_no_memory(static_cast<int>(saturate::ErrorKind::kRun)));
    } catch (const c10::Error& error) {  // of a thread of LibTorch, such as NCCL's watchdog
      const std::string text = "LibTorch: " + saturate::first_line(error.what());
      saturate::print_log(saturate::LogLevel::kError, "saturate", saturate::printable(text));
      std::abort();
    } catch (...) {
    }
  standard_end();
  std::abort();
}

// glibc aborts if a new thread finds no memory for its thread-local objects. Without a limit of
// memory an abort is a bug, whose core dump is useful.
void end_by_abort(int signal) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    _exit(report_no_memory(static_cast<int>(saturate::ErrorKind::kRun)));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Memory may run out where no handler of ours runs: while LibTorch initialises, before main(), and
// in its noexcept functions. Functions of this section run before any library's.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = [] {
  standard_end = std::set_terminate(end_without_handler);
  std::signal(SIGABRT, end_by_abort);
};

// "section.key=..." or "seed=...".
bool is_setting(std::string_view text) {
  const size_t equals = text.find('=');
  return equals != std::string_view::npos && equals > 0 &&
         std::ranges::all_of(text.substr(0, equals), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

// --set A=1 B=2 as --set A=1 --set B=2. With CLI11's own support of several values, an option would
// also take the recipe's path after them. Arguments after -- belong to another command.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments;
  bool after_set = false;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "--") {
      arguments.insert(arguments.end(), argv + i, argv + argc);
      break;
    }
    const bool is_value = i > 1 && std::string_view(argv[i - 1]) == "--set";
    if (!is_value && after_set && is_setting(text)) arguments.push_back("--set");
    after_set = is_value || text.starts_with("--set=") || (after_set && is_setting(text));
    arguments.push_back(text);
  }
  return arguments;
}

// The last of several settings of a key counts, as scripts expect that append their own.
void warn_of_overridden_settings(const std::vector<std::string>& arguments) {
  constexpr std::string_view kSet = "--set";
  std::map<std::string, std::string> values;  // by key
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const bool is_apart = arguments[i] == kSet && i + 1 < arguments.size();
    if (!is_apart && !arguments[i].starts_with("--set=")) continue;
    const std::string text = is_apart ? arguments[++i] : arguments[i].substr(kSet.size() + 1);
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
    const auto [former, is_first] = values.emplace(key, value);
    if (!is_first && former->second != value && saturate::this_world().rank == 0)
      saturate::print_warning(
          fmt::format("--set {}={} has no effect: a later --set {}={} overrides it", key,
                      former->second, key, value));
    former->second = value;
  }
}

// CLI11 does not report an unknown command where a command is missing.
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

int run(int argc, char** argv) {
  CLI::App app(
      "Trains models of images, tables and text on LibTorch and shows what slows them down.",
      "saturate");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "saturate " SATURATE_VERSION);
  app.get_formatter()->column_width(36);
  std::string format;  // take_log_format() has taken it: this is for the help
  app.add_option("--log-format", format, "Messages on stderr: text, or json (one object a line)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json"}));
  int exit_code = 0;
  using namespace saturate;
  for (const auto add :
       {add_train, add_launch, add_eval, add_data, add_bench, add_ladder, add_sweep, add_diagnose,
        add_tune, add_report, add_export, add_list, add_env, add_completion})
    add(app, exit_code);
  require_known_commands(app, argc, argv);
  std::vector<std::string> arguments = arguments_of(argc, argv);
  warn_of_overridden_settings(arguments);
  std::ranges::reverse(arguments);  // the order that CLI11 expects
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(
        2, saturate::first_line(error.what()) + ". Run saturate --help, or a command with --help");
  }
  return exit_code;
}

// How long a thread of a parallel region spins before it sleeps: some tens of microseconds, longer
// than between two operations of a step. libgomp's default of 300,000 is milliseconds, during which
// it keeps a core from the loader's threads.
constexpr const char* kSpins = "2000";

// libgomp reads it once, before main(): compute commands re-execute themselves, which takes the
// time to load LibTorch, some 0.2 s. The user's own setting is kept; without /proc the default is
// used.
void limit_spinning(int argc, char** argv) {
  constexpr std::string_view kComputing[] = {"train",  "eval",  "bench",  "diagnose", "tune",
                                             "ladder", "sweep", "launch", "env"};
  if (argc < 2 || std::ranges::find(kComputing, std::string_view(argv[1])) == std::end(kComputing))
    return;
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", kSpins, 1);
  execv("/proc/self/exe", argv);
}

// A file that is opened while one of them is closed gets its number, and with it what is printed.
// In the wrong direction, so that they still fail as closed ones do.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Each local shard and tar stays open, and each transfer of a store has a socket. The usual soft
// limit of 1024 is for programs that call select(), which nothing here does.
void raise_limit_of_open_files() {
  constexpr rlim_t kMost = 1 << 20;  // programs that close all numbers up to the limit take long
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t most = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= most) return;
  limit.rlim_cur = most;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Results that cannot be written are a failure, unless the reader of the output has exited.
int with_results_written(int code) {
  errno = 0;  // if an earlier write failed, this flush may succeed
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (errno == EPIPE || errno == EBADF || code != 0) return code;
  return report(static_cast<int>(saturate::ErrorKind::kRun),
                fmt::format("cannot write the results ({}). Make room where stdout goes to",
                            errno != 0 ? std::strerror(errno) : "an earlier write failed"));
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  raise_limit_of_open_files();
  // Exceeding the file size limit (ulimit -f) is then an error like a full disk, not a crash.
  std::signal(SIGXFSZ, SIG_IGN);
  // A parent that ignores it passes that on; the exit codes of processes would then be lost.
  std::signal(SIGCHLD, SIG_DFL);
  const int run_failed = static_cast<int>(saturate::ErrorKind::kRun);
  try {
    argc = take_log_format(argc, argv);
    limit_spinning(argc, argv);
    return with_results_written(run(argc, argv));
  } catch (const saturate::Stopped&) {
    return saturate::interrupted_code();
  } catch (const saturate::Error& error) {
    return report(error.exit_code(), error.what());
  } catch (const c10::Error& error) {
    return report_libtorch(run_failed, error);
  } catch (const std::bad_alloc&) {
    return report_no_memory(run_failed);
  } catch (const std::system_error& error) {
    // The reader of the output has gone.
    if (error.code() == std::errc::broken_pipe)
      return 128 + (saturate::stop_signal() != 0 ? saturate::stop_signal() : SIGPIPE);
    if (error.code() != std::errc::resource_unavailable_try_again)
      return report(run_failed, saturate::first_line(error.what()));
    return report(run_failed, kNoThreads);
  } catch (const std::exception& error) {
    const std::string text = saturate::first_line(error.what());
    // oneDNN gives no more details.
    if (!text.starts_with("could not create a ")) return report(run_failed, text);
    return report(run_failed,
                  "oneDNN " + text +
                      ". Memory may be short: lower train.batch or data.prefetch, or raise the "
                      "limit (ulimit -v). Or this CPU lacks the type: set precision.mode=fp32");
  }
}
