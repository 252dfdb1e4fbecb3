#include "advise/rung_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "advise/rung_wire.h"
#include "reduce/heartbeat.h"

namespace saturate {
namespace {

constexpr int kPollMs = 100;
constexpr int kChildIn = 3, kChildOut = 4;

[[noreturn]] void fail_system(const char* what, int number) {
  fail(ErrorKind::kRun, fmt::format("{}: {}", what, std::strerror(number)), "a rung's process",
       "Measure fewer rungs at once, or free memory");
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_system("no pipe can be made", errno);
    read = ends[0];
    write = ends[1];
  }
};

constexpr const char* kListening = "SATURATE_LISTEN_FD";

using Variables = std::vector<std::pair<std::string, std::string>>;

// How torchrun would tell a process its place, for parse_world(). A rung that trains by itself is
// told so: this process may have been started as one of several.
Variables place_in(const World& world) {
  Variables variables = {{"RANK", std::to_string(world.rank)},
                         {"WORLD_SIZE", std::to_string(world.size)},
                         {"LOCAL_RANK", std::to_string(world.local_rank)},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  if (world.local_size > 0)
    variables.emplace_back("LOCAL_WORLD_SIZE", std::to_string(world.local_size));
  if (world.size > 1) {
    variables.emplace_back("MASTER_ADDR", world.master);
    variables.emplace_back("MASTER_PORT", std::to_string(world.port));
  }
  return variables;
}

// This process's environment with `variables` over it, and without what a launcher means for this
// process alone.
std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(variables.begin(), variables.end(),
                                      [&](const auto& own) { return own.first == name; });
    if (!replaced && name != kReportVariable && name != kListening) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

// Ends, at once, when this does; its files are its folder's, and go with that.
class RungProcess {
 public:
  // `command`: the program, then its arguments. `listening`: a socket that it inherits, or -1.
  RungProcess(const std::vector<std::string>& command, Variables variables, int listening) {
    const Pipe down, up;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // A library's chatter on stdout does not get into the results.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    // By way of numbers that none of them has, lest one overwrites the other.
    const int free = std::max({down.read, up.write, kChildOut, listening}) + 1;
    if (listening >= 0) {
      posix_spawn_file_actions_adddup2(&actions, listening, free + 2);
      variables.emplace_back(kListening, std::to_string(free + 2));
    }
    posix_spawn_file_actions_adddup2(&actions, down.read, free);
    posix_spawn_file_actions_adddup2(&actions, up.write, free + 1);
    posix_spawn_file_actions_adddup2(&actions, free, kChildIn);
    posix_spawn_file_actions_adddup2(&actions, free + 1, kChildOut);
    posix_spawn_file_actions_addclose(&actions, free);
    posix_spawn_file_actions_addclose(&actions, free + 1);
    // Out of the terminal's reach: Ctrl-C is for the parent, which ends its processes itself.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const auto environment = environment_with(variables);
    const int failed = posix_spawn(&pid_, command[0].c_str(), &actions, &attributes,
                                   pointers_to(command).data(), pointers_to(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(down.read);
    close(up.write);
    in_ = down.write;
    out_ = up.read;
    reader_.emplace(out_);
    if (failed != 0) {
      pid_ = -1;
      close_pipes();
      fail_system("no process can be started", failed);
    }
  }
  ~RungProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait_for_end();
    close_pipes();
  }
  RungProcess(const RungProcess&) = delete;
  RungProcess& operator=(const RungProcess&) = delete;

  void ask(double seconds) { write_line(in_, {{"measure", seconds}}); }

  // Its next line; empty where should_stop gave up. Throws what the process failed of.
  std::optional<nlohmann::json> answer(const std::function<bool()>& should_stop) {
    while (!should_stop()) {
      const auto line = reader_->next(kPollMs);
      if (!line && reader_->ended())
        fail(ErrorKind::kRun, "its process " + wait_for_end(), "a rung's process",
             "Lower train.batch, or measure fewer rungs at once");
      if (!line) continue;
      auto json = nlohmann::json::parse(*line);
      if (json.contains("error")) throw_from_json(json);
      return json;
    }
    return std::nullopt;
  }

 private:
  // How it ended.
  std::string wait_for_end() {
    int status = 0;
    if (pid_ <= 0 || waitpid(std::exchange(pid_, -1), &status, 0) < 0) return "ended";
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      return "was killed, as the system does when memory runs out";
    return WIFSIGNALED(status) ? fmt::format("crashed (signal {})", WTERMSIG(status))
                               : fmt::format("ended with code {}", WEXITSTATUS(status));
  }
  void close_pipes() {
    close(in_);
    close(out_);
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::optional<LineReader> reader_;
};

ProcessMeasurer::ProcessMeasurer(Env& env, ProcessMeasurerOptions options)
    : env_(env), options_(std::move(options)) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &sigpipe_before_);
}

ProcessMeasurer::~ProcessMeasurer() {
  processes_.clear();
  sigaction(SIGPIPE, &sigpipe_before_, nullptr);
}

std::string ProcessMeasurer::folder_of(size_t rung) const {
  return fmt::format("{}/rung-{}", options_.folder, rung + 1);
}

bool ProcessMeasurer::start(size_t rung, const Recipe& recipe) {
  return start_as(rung, recipe, World(), -1, folder_of(rung) + "/run");
}

bool ProcessMeasurer::start_as(size_t rung, const Recipe& recipe, const World& world, int listening,
                               const std::string& folder) {
  env_.make_directories(folder_of(rung));
  const std::string path = folder_of(rung) + "/measured.toml";
  write_atomically(env_, path, to_toml(recipe));
  const std::vector<std::string> command = {options_.program, "measure-rung", path, folder,
                                            fmt::format("{}", options_.seconds)};
  processes_[rung] = std::make_unique<RungProcess>(command, place_in(world), listening);
  return answer_of(rung).has_value();
}

std::optional<RungTiming> ProcessMeasurer::measure(size_t rung, double seconds) {
  processes_.at(rung)->ask(seconds);
  const auto answer = answer_of(rung);
  return answer ? std::optional(timing_from_json(*answer)) : std::nullopt;
}

std::optional<nlohmann::json> ProcessMeasurer::answer_of(size_t rung) {
  try {
    return processes_.at(rung)->answer(options_.should_stop);
  } catch (...) {
    drop(rung);
    throw;
  }
}

void ProcessMeasurer::drop(size_t rung) {
  processes_.erase(rung);
}

std::unique_ptr<RungMeasurer> make_process_measurer(Env& env, ProcessMeasurerOptions options) {
  return std::make_unique<ProcessMeasurer>(env, std::move(options));
}

}  // namespace saturate
