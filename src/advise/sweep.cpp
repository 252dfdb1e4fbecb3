// A grid of settings as a ladder.
#include <fmt/format.h>

#include "advise/ladder.h"

namespace saturate {
namespace {

constexpr size_t kMostRungs = 256;

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

// At commas that are within neither quotes nor brackets.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted) depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0 && !quoted)
      values.emplace_back();
    else
      values.back() += c;
  }
  return values;
}

Axis parse_axis(const std::string& text) {
  const std::string where = "--over " + text;
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(ErrorKind::kUsage, "nothing to sweep over", where, "Write it as section.key=a,b,c");
  Axis axis{text.substr(0, equals), split_values(text.substr(equals + 1))};
  for (const auto& value : axis.values)
    if (value.empty())
      fail(ErrorKind::kUsage, "a value is missing", where, "Write it as section.key=a,b,c");
  return axis;
}

}  // namespace

Ladder make_sweep(const std::string& recipe, std::span<const std::string> over) {
  Ladder ladder;
  ladder.recipe = recipe;
  ladder.rungs.resize(1);
  for (const auto& text : over) {
    const Axis axis = parse_axis(text);
    std::vector<Rung> grid;
    for (const Rung& rung : ladder.rungs)
      for (const auto& value : axis.values) {
        grid.push_back(rung);
        const std::string setting = axis.key + "=" + value;
        grid.back().set.push_back(setting);
        grid.back().name += (rung.name.empty() ? "" : " ") + setting;
      }
    ladder.rungs = std::move(grid);
    ladder.title += (ladder.title.empty() ? "" : " x ") + axis.key;
    if (ladder.rungs.size() > kMostRungs)
      fail(ErrorKind::kUsage, fmt::format("the grid has {} points", ladder.rungs.size()),
           "--over " + text, fmt::format("Keep to {}", kMostRungs));
  }
  if (over.empty())
    fail(ErrorKind::kUsage, "nothing to sweep over", "saturate sweep",
         "Add such as --over train.batch=32,64");
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    ladder.rungs[i].previous = i == 0 ? 0 : i - 1;
    ladder.rungs[i].where = "point " + ladder.rungs[i].name;
  }
  ladder.title += " of " + recipe;
  return ladder;
}

}  // namespace saturate
