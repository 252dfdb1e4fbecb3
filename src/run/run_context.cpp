#include "run/run_context.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "recipe/option_row.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "saturate/data/registry.h"
#include "saturate/data/world.h"
#include "saturate/group.h"

namespace saturate {
namespace {

constexpr bool Votes::*kVotes[] = {&Votes::stop, &Votes::observer, &Votes::time_is_up, &Votes::save,
                                   &Votes::buffers};

// Fails if the machine lacks a device, before data is opened.
at::Device device_for(const Recipe& recipe) {
  const at::Device device = resolve_device(recipe.train.device);
  other_devices(recipe, device);
  return device;
}

// At least one byte for anything above 0: 0 means no limit.
int64_t to_bytes(double gib) {
  return gib > 0 ? std::max<int64_t>(1, std::llround(gib * double(int64_t{1} << 30))) : 0;
}

void require_named(bool good, const std::string& key, const std::string& needs) {
  if (!good)
    fail(ErrorKind::kUsage, key + " needs " + needs + ", and the program passes an object", key,
         "Change it, or use a name in the recipe: add_model() adds a model to its table");
}

// The parser checks ranges as it reads, and a checkpoint's recipe is read again.
void require_ranges(const Recipe& recipe, const std::string& where) {
  Recipe copy = recipe;
  for (const OptionRow& row : option_table()) row.set(copy, row.get(recipe), where);
}

Recipe naming_own_objects(Recipe recipe, const TrainerOptions& options) {
  const std::string own(kOwnObject);
  const TrainOptions& train = recipe.train;
  const PrecisionMode mode = recipe.precision.mode;
  const bool has_batch = train.batch != kAutomatic;
  if (options.model) {
    const std::string by_name = "a model that can be built by its name";
    require_named(has_batch, "train.batch=auto", by_name);
    require_named(train.compiled.empty(), "train.compiled", by_name);
    require_named(recipe.model.file.empty(), "model.file", by_name);
    require_named(recipe.distributed.mode != ParallelMode::kDp, "distributed.mode=dp", by_name);
    recipe.model.name = own;
  }
  if (options.task && options.group)
    fail(ErrorKind::kUsage, "a program's own task trains in one process only", "the program",
         "Remove TrainerOptions::task or TrainerOptions::group");
  if (options.task) {
    const std::string by_name = "the task that train.task names";
    require_named(has_batch, "train.batch=auto", by_name);
    require_named(train.compiled.empty(), "train.compiled", by_name);
  }
  if (options.optimizer) {
    const std::string by_name = "an optimizer that can be built by its name";
    require_named(has_batch, "train.batch=auto", by_name);
    require_named(mode != PrecisionMode::kBf16O2, "precision.mode=bf16-o2", by_name);
    require_named(mode != PrecisionMode::kFp16O2, "precision.mode=fp16-o2", by_name);
    recipe.optimizer.name = own;
  }
  if (options.schedule) recipe.schedule.name = own;
  if (options.dataset && recipe.data.source.empty()) recipe.data.source = own + ":";
  if (options.eval_dataset && recipe.data.eval_source.empty()) recipe.data.eval_source = own + ":";
  const std::string where = "the program's recipe";  // it may not come from a parser
  require_ranges(recipe, where);
  validate_recipe(recipe, where);
  return recipe;
}

TrainerOptions with_plain_folder(TrainerOptions options) {
  options.out = without_missing(options.out);
  return options;
}

}  // namespace

RunContext::RunContext(Env& env_in, TrainerOptions options_in, const Recipe& asked)
    : env(env_in),
      options(with_plain_folder(std::move(options_in))),
      group(options.group.get()),
      folder(is_first() ? std::make_unique<MadeFolder>(env, options.out) : nullptr),
      lock(folder ? env.lock(options.out + kFolderLock) : nullptr),
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
  Shard shard{group->rank(), group->world(), recipe.distributed.uneven};
  if (const World world = this_world(); world.size == shard.world) {
    shard.first_local = world.rank - world.local_rank;
    shard.local_size = world.local_size;
  }
  return shard;
}

bool RunContext::any(bool own) {
  if (!group) return own;
  Ledger::Scope scope(ledger, Phase::kReduce);
  return group->any(own);
}

bool RunContext::first_says(bool own) {
  return any(is_first() && own);
}

std::function<Votes()> RunContext::start_vote(const Votes& own) {
  const at::Tensor flags = at::empty({int64_t(std::size(kVotes))}, at::kInt);
  int* flag = flags.mutable_data_ptr<int>();
  for (const auto vote : kVotes) *flag++ = own.*vote;
  return [flags, wait = group->start_max(flags)] {
    wait();
    Votes all;
    const int* result = flags.const_data_ptr<int>();
    for (const auto vote : kVotes) all.*vote = *result++ != 0;
    return all;
  };
}

}  // namespace saturate
