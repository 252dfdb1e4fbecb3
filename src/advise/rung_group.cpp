#include "advise/rung_group.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "advise/rung_processes.h"
#include "advise/rung_wire.h"
#include "reduce/listen.h"
#include "reduce/rank_process.h"

namespace saturate {
namespace {

using nlohmann::json;

// One process's part of a ladder.
class LadderRank {
 public:
  LadderRank(Env& env, const ProcessMeasurerOptions& options, Group& group)
      : group_(group), own_(env, options) {}

  ProcessMeasurer& own() { return own_; }

  // Does this process's part of a command; gives what each says of its own. Collective.
  std::vector<json> obey(const json& command, int listening) {
    const bool takes_part = group_.rank() < command.at("processes").get<int>();
    const json said = takes_part ? attempt(command, listening) : json::object();
    std::vector<json> all;
    for (const std::string& text :
         group_.texts(said.dump(-1, ' ', false, json::error_handler_t::replace)))
      all.push_back(json::parse(text));
    // Where one has failed, none goes on.
    if (std::any_of(all.begin(), all.end(), [](const json& one) { return one.contains("error"); }))
      own_.drop(command.at("rung"));
    return all;
  }

 private:
  json attempt(const json& command, int listening) {
    const json stopped = {{"stopped", true}};
    const size_t rung = command.at("rung");
    try {
      if (command.at("do") == "measure") {
        const auto timing = own_.measure(rung, command.at("seconds"));
        return timing ? to_json(*timing) : stopped;
      }
      const Recipe recipe = parse_recipe(command.at("recipe").get<std::string>(), "rung");
      const bool started = own_.start_as(rung, recipe, world_of(command), listening,
                                         command.at("folder").get<std::string>());
      return started ? json::object() : stopped;
    } catch (const Error& error) {
      return to_json(error);
    }
  }

  // This process's place among those of the rung, which are the first ones.
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

// Among several failures, one that did not follow from another.
void throw_cause(const std::vector<json>& answers) {
  const json* cause = nullptr;
  const auto follows = [](const json& error) {
    return error.at("error").get<std::string>().starts_with("another process");
  };
  for (const json& answer : answers)
    if (answer.contains("error") && (!cause || follows(*cause))) cause = &answer;
  if (cause) throw_from_json(*cause);
}

bool has_stopped(const std::vector<json>& answers) {
  return std::any_of(answers.begin(), answers.end(),
                     [](const json& answer) { return answer.contains("stopped"); });
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
      // Another process is gone, and the rest find that out by themselves.
    }
  }

  bool start(size_t rung, const Recipe& recipe) override {
    if (is_alone(rung)) return rank_.own().start(rung, recipe);
    const Descriptor listening(listen_at(this_world().master, 0));
    return !has_stopped(command({{"do", "start"},
                                 {"rung", rung},
                                 {"processes", processes_[rung]},
                                 {"port", port_of(listening.get())},
                                 {"folder", rank_.own().folder_of(rung) + "/run"},
                                 {"recipe", to_toml(recipe)}},
                                listening.get()));
  }

  std::optional<RungTiming> measure(size_t rung, double seconds) override {
    if (is_alone(rung)) return rank_.own().measure(rung, seconds);
    const auto answers = command(
        {{"do", "measure"}, {"rung", rung}, {"processes", processes_[rung]}, {"seconds", seconds}},
        -1);
    if (has_stopped(answers)) return std::nullopt;
    RungTiming timing = timing_from_json(answers[0]);  // whose samples are those of all
    for (int other = 1; other < processes_[rung]; ++other) {
      const RungTiming its = timing_from_json(answers[size_t(other)]);
      timing.steps.cpu_s += its.steps.cpu_s;
      timing.memory_peak_bytes += its.memory_peak_bytes;
    }
    return timing;
  }

 private:
  // Tells the others so, whose wait begins anew.
  bool is_alone(size_t rung) {
    if (processes_[rung] > 1) return false;
    tell({{"do", "wait"}});
    return true;
  }
  void tell(const json& what) { group_.text_of_first(what.dump()); }
  std::vector<json> command(const json& what, int listening) {
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
    if (what != "wait") rank.obey(command, -1);
  }
}

}  // namespace saturate
