#include "app/command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <string_view>

#include "base/printable.h"
#include "reduce/binding.h"
#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/data/world.h"
#include "saturate/group.h"

namespace saturate {
namespace {

constexpr int kInterruptedExit = 130;  // part of the exit code contract, for SIGINT

volatile sig_atomic_t noted_signal = 0, has_hung_up = 0;
bool can_erase = false;  // a progress bar or ^C on stderr's line
bool is_terminal[3];     // by descriptor
std::string stop_message;

// The terminal is gone: writing to it would fail.
void leave_terminal() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd)
    if (is_terminal[fd]) dup2(null, fd);
}

extern "C" void note_signal(int signal) {
  // Only async-signal-safe calls here.
  if (noted_signal != 0 && signal == SIGINT) _exit(kInterruptedExit);
  if (signal == SIGHUP) leave_terminal();
  if (noted_signal == 0 && signal == SIGHUP) has_hung_up = 1;
  if (noted_signal == 0) noted_signal = signal == SIGINT ? SIGINT : SIGTERM;
  static const char erase[] = "\r\x1b[K";
  if (can_erase && write(STDERR_FILENO, erase, sizeof erase - 1) < 0) return;
  if (write(STDERR_FILENO, stop_message.data(), stop_message.size()) < 0) return;
}

void catch_signals(const std::string& text) {
  stop_message = log_line(LogLevel::kInfo, "saturate", text, {}, /*timed=*/false) + "\n";
  for (int fd = 0; fd < 3; ++fd) is_terminal[fd] = isatty(fd) == 1;
  can_erase = takes_escapes(STDERR_FILENO);
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  // SLURM sends SIGTERM before it ends a job, and SIGUSR1 if `sbatch --signal=USR1@60` asks for it.
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
  // The same Ctrl-C may end the reader of the output, such as tee: the run must be saved first.
  signal(SIGPIPE, SIG_IGN);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
}

}  // namespace

void catch_stop_signals() {
  catch_signals("stopping after this step; Ctrl-C again quits at once");
}

void catch_stop_signals_of_writing(const char* then) {
  catch_signals(std::string("stopping, and ") + then + "; Ctrl-C again quits at once");
}

int stop_signal() {
  return noted_signal;
}

int signal_to_pass_on() {
  return has_hung_up != 0 ? SIGHUP : noted_signal;
}

int interrupted_code() {
  return 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM);
}

void require_output(const std::string& path) {
  if (!path.empty() && this_world().rank == 0) require_writable(Env::posix(), path);
}

void require_outputs(const std::vector<std::string>& paths) {
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    std::error_code none;
    const bool is_file = !path.empty() && !path.starts_with("/dev/");
    if (is_file && !seen.insert(std::filesystem::weakly_canonical(path, none).string()).second)
      fail(ErrorKind::kUsage, "two results have the same file", path,
           "Give each option a separate file");
    require_output(path);
  }
}

void write_and_print(const std::vector<TextFile>& files, const std::function<void()>& print) {
  try {
    for (const auto& [path, text] : files)
      if (!path.empty()) write_atomically(Env::posix(), path, text);
  } catch (const Error&) {
    print();
    throw;
  }
  print();
}

void require_running() {
  if (stop_signal() != 0) throw Stopped();
}

void add_recipe(CLI::App& command, std::string& recipe) {
  command.add_option("RECIPE", recipe, "Recipe file, or the name of one that comes with saturate")
      ->required();
}

CLI::Option* add_settings(CLI::App& command, std::vector<std::string>& settings, const char* name,
                          const char* doc) {
  return command.add_option(name, settings, doc)->allow_extra_args(false);
}

void add_saved_model(CLI::App& command, SavedModelArguments& arguments) {
  command
      .add_option("CHECKPOINT", arguments.checkpoint,
                  "A checkpoint file, or a run folder, whose newest checkpoint is used")
      ->required();
  command.add_flag("--best", arguments.best,
                   "Use the run's best checkpoint (train.monitor) instead of its newest");
  command.add_flag("--plain", arguments.plain,
                   "Use the weights themselves instead of their averages (train.ema, train.swa)");
}

Checkpoint read_saved_model(Env& env, const SavedModelArguments& arguments, std::string& path) {
  return find_checkpoint(
      env, arguments.best ? best_checkpoint_path(env, arguments.checkpoint) : arguments.checkpoint,
      print_warning, &path);
}

void silence_libtorch() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
}

std::shared_ptr<Group> join_group(const Recipe& recipe) {
  const World world = this_world();
  if (world.size == 1) return nullptr;
  silence_libtorch();
  bind_process(world, recipe.train.device != "cpu",
               recipe.distributed.backend == CollectiveBackend::kGloo);
  return std::make_shared<Group>(world, group_options(recipe), resolve_device(recipe.train.device));
}

std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings) {
  std::vector<std::string> keys;
  for (const std::string& setting : settings) keys.push_back(setting.substr(0, setting.find('=')));
  std::istringstream all(to_toml(parse_recipe(to_toml(recipe), "recipe", settings)));
  std::string lines, section, shown;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    const std::string name = line.substr(0, line.find(' '));
    const std::string key = section.empty() ? name : section + "." + name;
    if (std::ranges::count(keys, key) == 0) continue;
    if (section != shown) lines += "  [" + section + "]\n";
    shown = section;
    lines += "  " + printable(line) + "\n";
  }
  return lines;
}

}  // namespace saturate
