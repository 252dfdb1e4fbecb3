// The parent's side of measuring: one process per rung, with a socket to it.
//
// In a ladder of several processes:
//   rank 0:  {"do": "start" | "measure" | "wait" | "end", "rung", "processes", ...}, to all
//   each:    starts or measures its process of the rung, and sends its result to all
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "advise/rung_wire.h"
#include "reduce/heartbeat.h"
#include "reduce/rank_process.h"
#include "reduce/sockets.h"
#include "saturate/data/world.h"
#include "saturate/group.h"

namespace saturate {
namespace {

using nlohmann::json;

constexpr int kPollMs = 100;

[[noreturn]] void fail_system(const char* what, int number) {
  fail(ErrorKind::kRun, fmt::format("{}: {}", what, std::strerror(number)), "a rung's process",
       "Measure fewer rungs at once, or free memory");
}

constexpr const char* kListening = "SATURATE_LISTEN_FD";

using Variables = std::vector<std::pair<std::string, std::string>>;

// The variables from which parse_world() makes `world`, as torchrun sets them. A process that
// trains alone has them too: this process may have been started as one of several.
Variables variables_of(const World& world) {
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

// This process's environment, with `variables` and without those that a launcher sets for this
// process alone.
std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    const bool replaced = std::ranges::count(variables, name, &Variables::value_type::first) > 0;
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

// Killed when this object ends.
class RungProcess {
 public:
  // `command`: the program, then its arguments. `listening`: a socket that it inherits, or -1.
  RungProcess(const std::vector<std::string>& command, Variables variables, int listening) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      fail_system("no socket can be made", errno);
    wire_ = Wire(ends[0]);
    const Descriptor its_end(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // A library's output on stdout must not mix with the results.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (listening >= 0) {  // first: it may have the number of the other socket
      const int kept = std::max({its_end.get(), listening, kRungSocket}) + 1;
      posix_spawn_file_actions_adddup2(&actions, listening, kept);
      variables.emplace_back(kListening, std::to_string(kept));
    }
    posix_spawn_file_actions_adddup2(&actions, its_end.get(), kRungSocket);
    // In its own process group: Ctrl-C reaches the parent only, which ends its processes.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const auto environment = environment_with(variables);
    const int failed = posix_spawn(&pid_, command[0].c_str(), &actions, &attributes,
                                   pointers_to(command).data(), pointers_to(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0) fail_system("no process can be started", failed);
  }
  ~RungProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    wait_for_end();
  }
  RungProcess(const RungProcess&) = delete;
  RungProcess& operator=(const RungProcess&) = delete;

  void ask(double seconds) { wire_.say({{"measure", seconds}}); }

  // Its next message; empty if should_stop cancelled. Throws the process's error.
  std::optional<json> answer(const std::function<bool()>& should_stop) {
    while (!should_stop()) {
      const auto said = next_message(wire_, kPollMs);
      if (!said && !wire_.open())
        fail(ErrorKind::kRun, "its process " + wait_for_end(), "a rung's process",
             "Lower train.batch, or measure fewer rungs at once");
      if (!said) continue;
      if (said->contains("error")) throw_from_json(*said);
      return said;
    }
    return std::nullopt;
  }

 private:
  std::string wait_for_end() {
    int status = 0;
    if (pid_ <= 0 || waitpid(std::exchange(pid_, -1), &status, 0) < 0) return "ended";
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      return "was killed, as the system does when memory runs out";
    return WIFSIGNALED(status) ? fmt::format("crashed (signal {})", WTERMSIG(status))
                               : fmt::format("ended with code {}", WEXITSTATUS(status));
  }

  pid_t pid_ = -1;
  Wire wire_;
};

class ProcessMeasurer : public RungMeasurer {
 public:
  ProcessMeasurer(Env& env, ProcessMeasurerOptions options)
      : env_(env), options_(std::move(options)) {}

  bool start(size_t rung, const Recipe& recipe) override {
    return start_as(rung, recipe, World(), -1, folder_of(rung) + "/run");
  }

  std::optional<RungTiming> measure(size_t rung, double seconds) override {
    processes_.at(rung)->ask(seconds);
    const auto answer = answer_of(rung);
    return answer ? std::optional(answer->get<RungTiming>()) : std::nullopt;
  }

  // A rung's folder, not yet made.
  std::string folder_of(size_t rung) const {
    return fmt::format("{}/rung-{}", options_.folder, rung + 1);
  }

  // Starts a rung's process as one rank of `world`, whose run is in `folder`. `listening`: a socket
  // at the world's port, for rank 0, which the caller keeps. False if should_stop cancelled.
  bool start_as(size_t rung, const Recipe& recipe, const World& world, int listening,
                const std::string& folder) {
    env_.make_directories(folder_of(rung));
    const std::string path = folder_of(rung) + "/measured.toml";
    write_atomically(env_, path, to_toml(recipe));
    const std::vector<std::string> command = {options_.program, "measure-rung", path, folder,
                                              fmt::format("{}", options_.seconds)};
    processes_[rung] = std::make_unique<RungProcess>(command, variables_of(world), listening);
    return answer_of(rung).has_value();
  }

  // Ends a rung's process, if there is one, to free its memory.
  void drop(size_t rung) { processes_.erase(rung); }

 private:
  std::optional<json> answer_of(size_t rung) {
    try {
      return processes_.at(rung)->answer(options_.should_stop);
    } catch (...) {
      drop(rung);
      throw;
    }
  }

  Env& env_;
  const ProcessMeasurerOptions options_;
  std::map<size_t, std::unique_ptr<RungProcess>> processes_;
};

bool any_has(const std::vector<json>& answers, const char* key) {
  return std::ranges::any_of(answers, [&](const json& answer) { return answer.contains(key); });
}

// One rank's part of a ladder.
class LadderRank {
 public:
  LadderRank(Env& env, const ProcessMeasurerOptions& options, Group& group)
      : group_(group), own_(env, options) {}

  ProcessMeasurer& own() { return own_; }

  // Does this rank's part of a command; returns the answers of all. Collective.
  std::vector<json> obey(const json& command, int listening = -1) {
    const bool takes_part = group_.rank() < command.at("processes").get<int>();
    const json said = takes_part ? attempt(command, listening) : json::object();
    std::vector<json> all;
    for (const std::string& text :
         group_.texts(said.dump(-1, ' ', false, json::error_handler_t::replace)))
      all.push_back(json::parse(text));
    // If one has failed, none continues.
    if (any_has(all, "error")) own_.drop(command.at("rung"));
    return all;
  }

 private:
  json attempt(const json& command, int listening) {
    const json stopped = {{"stopped", true}};
    const size_t rung = command.at("rung");
    try {
      if (command.at("do") == "measure") {
        const auto timing = own_.measure(rung, command.at("seconds"));
        return timing ? json(*timing) : stopped;
      }
      const Recipe recipe = parse_recipe(command.at("recipe").get<std::string>(), "rung");
      const bool started = own_.start_as(rung, recipe, world_of(command), listening,
                                         command.at("folder").get<std::string>());
      return started ? json::object() : stopped;
    } catch (const Error& error) {
      return to_json(error);
    }
  }

  // This process among those of the rung, which are the first ranks.
  static World world_of(const json& command) {
    World world = this_world();
    world.size = command.at("processes");
    world.port = command.at("port");
    const int first_here = world.rank - world.local_rank;
    if (world.local_size > 0)
      world.local_size = std::min(world.local_size, world.size - first_here);
    return world;
  }

  Group& group_;
  ProcessMeasurer own_;
};

// Throws one failure, if possible one that did not follow from another.
void throw_cause(const std::vector<json>& answers) {
  const json* cause = nullptr;
  const auto follows = [](const json& error) {
    return error.at("error").get<std::string>().starts_with("another process");
  };
  for (const json& answer : answers)
    if (answer.contains("error") && (!cause || follows(*cause))) cause = &answer;
  if (cause) throw_from_json(*cause);
}

class GroupMeasurer : public RungMeasurer {
 public:
  GroupMeasurer(Env& env, const Ladder& ladder, const ProcessMeasurerOptions& options, Group& group)
      : group_(group), rank_(env, options, group) {
    for (const Rung& rung : ladder.rungs) processes_.push_back(rung.processes);
  }
  ~GroupMeasurer() override {
    try {
      tell({{"do", "end"}});
    } catch (const std::exception&) {
      // Another process is gone, which the rest detect too.
    }
  }

  bool start(size_t rung, const Recipe& recipe) override {
    if (is_alone(rung)) return rank_.own().start(rung, recipe);
    const World world = this_world();
    const Descriptor listening(listen_at(world.master, 0, spans_machines(world)));
    const auto answers = command({{"do", "start"},
                                  {"rung", rung},
                                  {"processes", processes_[rung]},
                                  {"port", port_of(listening.get())},
                                  {"folder", rank_.own().folder_of(rung) + "/run"},
                                  {"recipe", to_toml(recipe)}},
                                 listening.get());
    return !any_has(answers, "stopped");
  }

  std::optional<RungTiming> measure(size_t rung, double seconds) override {
    if (is_alone(rung)) return rank_.own().measure(rung, seconds);
    const auto answers = command(
        {{"do", "measure"}, {"rung", rung}, {"processes", processes_[rung]}, {"seconds", seconds}});
    if (any_has(answers, "stopped")) return std::nullopt;
    RungTiming timing = answers[0];  // whose samples are those of all
    for (int other = 1; other < processes_[rung]; ++other) {
      const RungTiming its = answers[size_t(other)];
      timing.steps.cpu_s += its.steps.cpu_s;
      timing.memory_peak_bytes += its.memory_peak_bytes;
    }
    return timing;
  }

 private:
  // If so, tells the others, whose time limit begins again.
  bool is_alone(size_t rung) {
    if (processes_[rung] > 1) return false;
    tell({{"do", "wait"}});
    return true;
  }
  void tell(const json& what) { group_.text_of_first(what.dump()); }
  std::vector<json> command(const json& what, int listening = -1) {
    tell(what);
    auto answers = rank_.obey(what, listening);
    throw_cause(answers);
    return answers;
  }

  Group& group_;
  LadderRank rank_;
  std::vector<int> processes_;  // of each rung
};

}  // namespace

std::unique_ptr<RungMeasurer> make_process_measurer(Env& env, ProcessMeasurerOptions options) {
  return std::make_unique<ProcessMeasurer>(env, std::move(options));
}

std::unique_ptr<RungMeasurer> make_group_measurer(Env& env, const Ladder& ladder,
                                                  const ProcessMeasurerOptions& options,
                                                  Group& group) {
  return std::make_unique<GroupMeasurer>(env, ladder, options, group);
}

void help_measuring(Env& env, const ProcessMeasurerOptions& options, Group& group) {
  LadderRank rank(env, options, group);
  while (true) {
    const json command = json::parse(group.text_of_first(""));
    const std::string what = command.at("do");
    if (what == "end") return;
    if (what != "wait") rank.obey(command);
  }
}

}  // namespace saturate
