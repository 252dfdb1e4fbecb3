// The loss of a training after its first samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "saturate/data/recipe.h"

namespace saturate {

class Env;

// Trains by `recipe` from its beginning, without evaluation and saving, on `samples` samples (those
// of whole steps) and returns the mean loss over the last quarter of them. Fails as training does.
// Empty where should_stop gave up.
std::optional<double> early_loss(Env& env, Recipe recipe, const std::string& folder,
                                 int64_t samples, const std::function<bool()>& should_stop);

}  // namespace saturate
