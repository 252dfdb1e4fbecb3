#include "app/recipe_lines.h"

#include <algorithm>
#include <sstream>

#include "base/printable.h"

namespace saturate {

std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings) {
  std::vector<std::string> keys;
  for (const std::string& setting : settings) keys.push_back(setting.substr(0, setting.find('=')));
  std::istringstream all(to_toml(parse_recipe(to_toml(recipe), "recipe", settings)));
  std::string lines, section, shown;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    const std::string name = line.substr(0, line.find(' '));
    const std::string key = section.empty() ? name : section + "." + name;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
    if (section != shown) lines += "  [" + section + "]\n";
    shown = section;
    lines += "  " + printable(line) + "\n";
  }
  return lines;
}

}  // namespace saturate
