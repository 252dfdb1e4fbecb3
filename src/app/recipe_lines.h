// Settings as the lines of a recipe.
#pragma once

#include <string>
#include <vector>

#include "saturate/data/recipe.h"

namespace saturate {

// `settings` ("section.key=value") that differ from `recipe`, as lines for a recipe file: indented,
// under their sections' headers. Fails as parse_recipe() does.
std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings);

}  // namespace saturate
