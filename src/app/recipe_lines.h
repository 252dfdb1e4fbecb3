// Settings as the lines of a recipe.
#pragma once

#include <string>
#include <vector>

#include "saturate/recipe.h"

namespace saturate {

// What a recipe file holds for `settings` ("section.key=value") on top of `recipe`: indented lines,
// under their sections' headers, to be pasted. Fails as parse_recipe() does.
std::string recipe_lines(const Recipe& recipe, const std::vector<std::string>& settings);

}  // namespace saturate
