#include "app/join_group.h"

#include "reduce/binding.h"
#include "run/setup.h"
#include "saturate/group.h"

namespace saturate {

std::shared_ptr<Group> join_group(const Recipe& recipe) {
  const World world = this_world();
  if (world.size == 1) return nullptr;
  bind_process(world, recipe.train.device != "cpu",
               recipe.distributed.backend == CollectiveBackend::kGloo);
  return std::make_shared<Group>(world, recipe.distributed, resolve_device(recipe.train.device));
}

}  // namespace saturate
