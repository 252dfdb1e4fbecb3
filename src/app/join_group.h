// The processes of a run, as announced by the launcher's environment variables.
#pragma once

#include <memory>

#include "saturate/data/recipe.h"

namespace saturate {

class Group;

// Binds this process to its part of the machine, and waits for the others; null if it is alone.
std::shared_ptr<Group> join_group(const Recipe& recipe);

}  // namespace saturate
