// From rungs to what they run on: a recipe each, and the sources that are packed for them.

#include "advise/ladder.h"
#include "base/thread_pool.h"
#include "data/export.h"
#include "saturate/data/world.h"
#include "trace/host.h"

namespace saturate {
namespace {

std::string with_scratch(std::string text, const std::string& scratch) {
  for (size_t at = 0; (at = text.find(kScratch, at)) != std::string::npos; at += scratch.size())
    text.replace(at, kScratch.size(), scratch);
  return text;
}

}  // namespace

MachineFacts this_machine() {
  MachineFacts machine;
  machine.cuda = gpu_count();
  machine.cores = available_cores();
  const World world = this_world();
  machine.processes = world.size;
  if (world.local_size > 0) machine.nodes = (world.size + world.local_size - 1) / world.local_size;
  return machine;
}

std::vector<std::optional<Recipe>> ladder_recipes(Env& env, const Ladder& ladder,
                                                  std::span<const std::string> overrides,
                                                  const std::string& scratch,
                                                  const MachineFacts& machine) {
  std::vector<std::optional<Recipe>> recipes;
  for (const Rung& rung : ladder.rungs) {
    recipes.emplace_back();
    if (!unmet_needs(rung, machine).empty()) continue;
    std::vector<std::string> set = ladder.set;
    set.insert(set.end(), overrides.begin(), overrides.end());
    set.insert(set.end(), rung.set.begin(), rung.set.end());
    for (std::string& text : set) text = with_scratch(text, scratch);
    try {
      recipes.back() = load_recipe(env, ladder.recipe, set);
    } catch (const Error& error) {
      fail(error.kind(), error.reason(), rung.where + ", " + error.where(), error.remedy());
    }
  }
  return recipes;
}

void make_packs(Env& env, const Ladder& ladder, const std::string& scratch,
                const ProgressCallback& progress) {
  constexpr std::string_view kFolder = "folder:";
  for (const LadderPack& pack : ladder.packs) {
    const auto source = open_dataset(env, with_scratch(pack.source, scratch));
    PackOptions options;
    options.out = with_scratch(pack.out, scratch);
    options.threads = available_cores();
    if (options.out.starts_with(kFolder))
      write_dataset(env, *source, options.out.substr(kFolder.size()), options.threads, progress);
    else
      pack_dataset(env, *source, options, progress);
  }
}

}  // namespace saturate
