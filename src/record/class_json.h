#pragma once

#include <nlohmann/json.hpp>

#include "record/class_results.h"

namespace saturate {

// Adds "counted" ("images" or "pixels"), "classes" and "confusion" to an object.
void add_json(nlohmann::ordered_json& json, const ClassResults& results);

}  // namespace saturate
