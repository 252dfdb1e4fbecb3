#include "advise/ladder_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "saturate/data/registry.h"

namespace saturate {
namespace {

constexpr std::array<std::pair<std::string_view, int MachineFacts::*>, 4> kNeeds = {
    {{"cuda", &MachineFacts::cuda},
     {"cores", &MachineFacts::cores},
     {"processes", &MachineFacts::processes},
     {"nodes", &MachineFacts::nodes}}};

struct Need {
  std::string_view name;
  int least = 0;
  int MachineFacts::*fact = nullptr;  // null: unknown
};

// least = 0 where the number is none.
Need split(std::string_view text) {
  Need need{text, 1, nullptr};
  if (const auto at = text.find(">="); at != std::string_view::npos) {
    need.name = text.substr(0, at);
    const std::string_view number = text.substr(at + 2);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), need.least);
    if (error != std::errc() || end != number.data() + number.size()) need.least = 0;
  }
  for (const auto& [name, fact] : kNeeds)
    if (name == need.name) need.fact = fact;
  return need;
}

// For a requirement that is no feature; empty if it is met.
std::string unmet(const std::string& text, const MachineFacts& machine) {
  const Need need = split(text);
  const int here = machine.*need.fact;
  return here >= need.least ? "" : fmt::format("{} (here {})", text, here);
}

}  // namespace

void check_need(const std::string& text, const std::string& where) {
  if (text.starts_with(kFeature) && text.size() > kFeature.size()) return;
  const Need need = split(text);
  if (!need.fact) {
    std::vector<std::string> known;
    for (const auto& [name, fact] : kNeeds) known.emplace_back(name);
    fail(ErrorKind::kUsage, fmt::format("needs has an unknown \"{}\"", need.name), where,
         suggest(need.name, known));
  }
  if (need.least < 1)
    fail(ErrorKind::kUsage, "needs has \"" + text + "\", which is no number above 0", where,
         fmt::format("Write it as \"{0}\" or \"{0}>=2\"", need.name));
}

std::string unmet_needs(const Rung& rung, const MachineFacts& machine) {
  std::string needs, lacks;
  std::vector<std::string> all = rung.needs;
  if (const std::string own = fmt::format("processes>={}", rung.processes);
      rung.processes > 1 && std::find(all.begin(), all.end(), own) == all.end())
    all.push_back(own);
  for (const std::string& need : all)
    if (need.starts_with(kFeature))
      lacks += (lacks.empty() ? "" : ", ") + need.substr(kFeature.size());
    else if (const std::string why = unmet(need, machine); !why.empty())
      needs += (needs.empty() ? "needs " : ", ") + why;
  if (lacks.empty()) return needs;
  return needs + (needs.empty() ? "" : "; ") + "this version has no " + lacks;
}

}  // namespace saturate
