#include "reduce/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <sstream>

namespace saturate {
namespace {

constexpr size_t kNamedRanks = 8;

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const size_t named = std::min(ranks.size(), kNamedRanks);
  const std::string text = fmt::format(
      "ranks {}", fmt::join(ranks.begin(), ranks.begin() + std::ptrdiff_t(named), ", "));
  if (named == ranks.size()) return text;
  return fmt::format("{} and {} more", text, ranks.size() - named);
}

std::pair<std::string, std::string> first_difference(const std::string& one,
                                                     const std::string& other) {
  std::istringstream lines(one), others(other);
  const auto next = [](std::istringstream& from) {
    std::string line;
    return std::getline(from, line) ? line : std::string("nothing");
  };
  while (lines || others) {
    auto pair = std::pair(next(lines), next(others));
    if (pair.first != pair.second) return pair;
  }
  return {"nothing", "nothing"};
}

}  // namespace saturate
