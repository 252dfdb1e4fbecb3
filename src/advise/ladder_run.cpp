// The recipes and sources of rungs, the order of their measurements, and their results.
#include <fmt/format.h>

#include <algorithm>

#include "advise/ladder.h"
#include "base/thread_pool.h"
#include "data/export.h"
#include "saturate/data/world.h"
#include "trace/host.h"

namespace saturate {
namespace {

// In `set`, `source` and `out` of a ladder: a folder that is removed at the end.
constexpr std::string_view kScratch = "{scratch}";

std::string with_scratch(std::string text, const std::string& scratch) {
  for (size_t at = 0; (at = text.find(kScratch, at)) != std::string::npos; at += scratch.size())
    text.replace(at, kScratch.size(), scratch);
  return text;
}

class LadderRun {
 public:
  LadderRun(const Ladder& ladder, std::span<const std::optional<Recipe>> recipes,
            const LadderOptions& options, RungMeasurer& measurer)
      : ladder_(ladder), recipes_(recipes), options_(options), measurer_(measurer) {
    result_.rungs.resize(ladder.rungs.size());
    for (size_t i = 0; i < ladder.rungs.size(); ++i)
      if (recipes[i]) live_.push_back(i);
    total_ = int(live_.size()) * (1 + options.rounds);
  }

  LadderResult run() {
    start_all();
    for (int round = 0; round < options_.rounds && !result_.interrupted; ++round) {
      const std::vector<size_t> order(live_);  // a rung that fails leaves live_
      for (const size_t rung : order)
        if (!result_.interrupted) measure(rung, round);
      std::reverse(live_.begin(), live_.end());
    }
    return std::move(result_);
  }

 private:
  void start_all() {
    const std::vector<size_t> order(live_);
    for (const size_t rung : order) {
      tell(fmt::format("setting up: {}", ladder_.rungs[rung].name));
      attempt(rung, [&] { result_.interrupted = !measurer_.start(rung, *recipes_[rung]); });
      if (result_.interrupted) return;
      ++done_;
    }
  }

  void measure(size_t rung, int round) {
    tell(fmt::format("round {} of {}: {}", round + 1, options_.rounds, ladder_.rungs[rung].name));
    attempt(rung, [&] {
      const auto timing = measurer_.measure(rung, options_.seconds);
      if (timing)
        result_.rungs[rung].rounds.push_back(*timing);
      else
        result_.interrupted = true;
    });
    ++done_;
  }

  // A run that fails ends its rung only; a wrong setting ends the ladder.
  template <class Action>
  void attempt(size_t rung, const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRun)
        fail(error.kind(), error.reason(), ladder_.rungs[rung].where + ", " + error.where(),
             error.remedy());
      result_.rungs[rung].skipped = "failed: " + error.reason();
      result_.rungs[rung].rounds.clear();
      std::erase(live_, rung);
    }
  }

  void tell(const std::string& what) {
    if (options_.progress) options_.progress(done_, total_, what);
  }

  const Ladder& ladder_;
  std::span<const std::optional<Recipe>> recipes_;
  const LadderOptions& options_;
  RungMeasurer& measurer_;
  std::vector<size_t> live_;  // rungs still measured, in this round's order
  int done_ = 0, total_ = 0;
  LadderResult result_;
};

std::vector<double> rates_of(const RungResult& rung) {
  std::vector<double> rates;
  for (const RungTiming& timing : rung.rounds) rates.push_back(timing.steps.images_per_s());
  return rates;
}

// Over the rounds that both have, which are the first ones.
std::optional<Gain> gain_of(const RungResult& before, const RungResult& after) {
  auto slow = rates_of(before), fast = rates_of(after);
  slow.resize(std::min(slow.size(), fast.size()));
  fast.resize(slow.size());
  return slow.empty() ? std::nullopt : std::optional(paired_gain(slow, fast));
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

double steps_per_s(const RungResult& rung) {
  std::vector<double> rates;
  for (const RungTiming& timing : rung.rounds)
    rates.push_back(double(timing.steps.steps) / timing.steps.wall_s);
  return median_of(rates);
}

double images_per_s(const RungResult& rung) {
  return median_of(rates_of(rung));
}

LadderResult run_ladder(const Ladder& ladder, std::span<const std::optional<Recipe>> recipes,
                        const MachineFacts& machine, const LadderOptions& options,
                        RungMeasurer& measurer) {
  LadderResult result = LadderRun(ladder, recipes, options, measurer).run();
  for (size_t i = 0; i < result.rungs.size(); ++i) {
    RungResult& found = result.rungs[i];
    const Rung& rung = ladder.rungs[i];
    if (!recipes[i])
      found.skipped = unmet_needs(rung, machine);
    else if (found.rounds.empty() && found.skipped.empty())
      found.skipped = "interrupted before it was measured";
    if (i > 0) {
      found.over_previous = gain_of(result.rungs[rung.previous], found);
      found.seed_gain = seed_gain(ladder.rungs[0].seed_figure, rung.seed_figure);
    }
    found.over_first = gain_of(result.rungs[0], found);
  }
  return result;
}

}  // namespace saturate
