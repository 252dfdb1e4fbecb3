#include "saturate/data/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace saturate {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::string best;
  // Farther than this, a suggestion confuses more than it helps.
  size_t best_distance = name.size() / 3 + 2;
  for (const auto& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string suggest(std::string_view name, std::span<const std::string> known) {
  if (const std::string near = nearest_name(name, known); !near.empty())
    return "Did you mean \"" + near + "\"?";
  return fmt::format("Known: {}", fmt::join(known, ", "));
}

}  // namespace saturate
