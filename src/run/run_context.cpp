#include "run/run_context.h"

#include <cmath>
#include <utility>

#include "run/own_objects.h"
#include "run/setup.h"
#include "saturate/group.h"

namespace saturate {
namespace {

std::unique_ptr<FileLock> lock_folder(Env& env, const std::string& folder) {
  env.make_directories(folder);
  return env.lock(folder + "/.lock");
}

// Refuses what the machine lacks before data is opened.
at::Device device_for(const Recipe& recipe) {
  const at::Device device = resolve_device(recipe.train.device);
  other_devices(recipe, device);
  return device;
}

// At least one byte for anything above 0: 0 means no limit.
int64_t to_bytes(double gib) {
  return gib > 0 ? std::max<int64_t>(1, std::llround(gib * double(int64_t{1} << 30))) : 0;
}

}  // namespace

RunContext::RunContext(Env& env_in, TrainerOptions options_in, const Recipe& asked)
    : env(env_in),
      options(std::move(options_in)),
      group(options.group.get()),
      lock(is_first() ? lock_folder(env, options.out) : nullptr),
      device(device_for(asked)),
      memory(tensor_memory(device)),
      budget(memory, to_bytes(asked.train.memory_gb)),
      ledger(env, &memory),
      streams(make_stream_clock(device)),
      recipe(naming_own_objects(asked, options)) {}

bool RunContext::is_first() const {
  return !group || group->rank() == 0;
}

Shard RunContext::shard() const {
  if (!group) return {};
  return {group->rank(), group->world(), recipe.distributed.uneven};
}

bool RunContext::any(bool own) {
  if (!group) return own;
  Ledger::Scope scope(ledger, Phase::kReduce);
  return group->any(own);
}

bool RunContext::first_says(bool own) {
  return any(is_first() && own);
}

}  // namespace saturate
