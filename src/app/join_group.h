// The processes of a run, as whoever started them says by the environment.
#pragma once

#include <memory>

#include "saturate/recipe.h"

namespace saturate {

class Group;

// Takes this process's part of the machine, and waits for the others; null where it is alone.
std::shared_ptr<Group> join_group(const Recipe& recipe);

}  // namespace saturate
