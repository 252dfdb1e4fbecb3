// The parent's side: one process a rung, talked to over two pipes.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "advise/rung_wire.h"

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

// Ends, at once, when this does; its files are its folder's, and go with that.
class RungProcess {
 public:
  RungProcess(const std::string& program, const std::vector<std::string>& arguments) {
    const Pipe down, up;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // A library's chatter on stdout does not get into the results.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    // By way of numbers that neither pipe has, lest one overwrites the other.
    const int free = std::max({down.read, up.write, kChildOut}) + 1;
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
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const int failed =
        posix_spawn(&pid_, program.c_str(), &actions, &attributes, argv.data(), environ);
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

class ProcessMeasurer : public RungMeasurer {
 public:
  ProcessMeasurer(Env& env, ProcessMeasurerOptions options)
      : env_(env), options_(std::move(options)) {
    signal(SIGPIPE, SIG_IGN);  // a process that is gone is found out by its end of the other pipe
  }

  bool start(size_t rung, const Recipe& recipe) override {
    const std::string folder = fmt::format("{}/rung-{}", options_.folder, rung + 1);
    env_.make_directories(folder);
    const std::string path = folder + "/measured.toml";
    write_atomically(env_, path, to_toml(recipe));
    const std::vector<std::string> arguments = {"measure-rung", path, folder + "/run",
                                                fmt::format("{}", options_.seconds)};
    processes_[rung] = std::make_unique<RungProcess>(options_.program, arguments);
    return answer_of(rung).has_value();
  }

  std::optional<RungTiming> measure(size_t rung, double seconds) override {
    processes_.at(rung)->ask(seconds);
    const auto answer = answer_of(rung);
    return answer ? std::optional(timing_from_json(*answer)) : std::nullopt;
  }

 private:
  std::optional<nlohmann::json> answer_of(size_t rung) {
    try {
      return processes_.at(rung)->answer(options_.should_stop);
    } catch (...) {
      processes_.erase(rung);  // a rung that failed gives back its memory
      throw;
    }
  }

  Env& env_;
  const ProcessMeasurerOptions options_;
  std::map<size_t, std::unique_ptr<RungProcess>> processes_;
};

}  // namespace

std::unique_ptr<RungMeasurer> make_process_measurer(Env& env, ProcessMeasurerOptions options) {
  return std::make_unique<ProcessMeasurer>(env, std::move(options));
}

}  // namespace saturate
