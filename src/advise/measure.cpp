// Measures a recipe and its what-ifs: the recipe's own run lives throughout, a changed one beside
// it at a time, and both take turns, round by round.
#include "advise/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "advise/measured_trainer.h"
#include "advise/what_ifs.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "run/setup.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"
#include "saturate/feed.h"
#include "saturate/memory.h"
#include "saturate/train_step.h"
#include "trace/host.h"

namespace saturate {
namespace {

// Whether the batch that is held has none of it: on a GPU it was copied there already.
bool spares_step(Cause cause) {
  return is_input(cause) || cause == Cause::kCopy;
}

constexpr double kBaseShare = 0.25;       // of the time, for the recipe itself
constexpr double kInterludeShare = 0.05;  // of the time, for evaluations, and at most for one
constexpr size_t kInterludes = 3;         // that are timed, where they are short
constexpr double kLeastTurn = 0.05;       // seconds
constexpr double kLongestTurn = 2;        // seconds
constexpr double kLookShare = 0.5;        // of what is left then, for a first look at each what-if
constexpr size_t kSharers = 2;        // that the time after that is for, as far as the next goes
constexpr double kSettlingSteps = 3;  // of a turn, about; one where it is a long one
constexpr double kTurnSteps = 10;     // measured in a turn, where there is time for them
constexpr int kRankedRounds = 6;      // from which gains are told by ranks: see gain.h
constexpr double kHopeless = 1.02;    // a what-if whose interval ends below is given up
constexpr size_t kWarmSamples = 256;  // that stand for a source in memory
constexpr size_t kExamined = 32;      // samples whose formats are looked at
constexpr double kGiB = 1 << 30;

}  // namespace

Recipe with_settings(const Recipe& recipe, const std::vector<std::string>& settings) {
  return parse_recipe(to_toml(recipe), "what if", settings);
}

Measuring::Measuring(Env& env, const Recipe& recipe, const DiagnoseOptions& options)
    : env_(env), options_(options), epochs_(recipe.train.epochs), begin_ns_(env.now_ns()) {
  if (options.progress != Progress::Style::kSilent)
    progress_.emplace(env, "diagnose", "s", int64_t(options.seconds), options.progress);
  show("opening " + recipe.data.source);
  const int threads = recipe.data.threads > 0 ? recipe.data.threads : available_cores();
  source_ = stage_dataset(env, open_dataset(env, recipe.data.source), recipe.data.source,
                          recipe.data.stage, threads);
  facts_ = source_facts(*source_, spread_samples(source_->size(), kExamined));
  // Settings asked for are checked before any time is spent.
  for (const std::string& setting : options.tries) with_settings(recipe, {setting});
  show("building the run");
  // Its evaluation is timed by itself, and in no other run.
  Recipe base = recipe_of_trial(recipe);
  if (wants(Cause::kEvaluation)) base.data.eval_source = recipe.data.eval_source;
  base.train.eval_every = base.train.eval_every_steps = 0;
  base_ = make_trial(base, true);
  found_.recipe = base_->recipe();
  found_.recipe.data.eval_source.clear();
  found_.recipe.train.eval_every = recipe.train.eval_every;
  found_.recipe.train.eval_every_steps = recipe.train.eval_every_steps;
  has_evaluation_ = !base.data.eval_source.empty();
}

Measuring::~Measuring() = default;

double Measuring::elapsed_s() const {
  return double(env_.now_ns() - begin_ns_) * 1e-9;
}

void Measuring::show(const std::string& what) {
  doing_ = what;
  if (progress_) progress_->update(std::min(int64_t(elapsed_s()), int64_t(options_.seconds)), what);
}

bool Measuring::wants(Cause cause) const {
  WhatIf what_if;
  what_if.cause = cause;
  return options_.wanted(what_if);
}

// With what the run records of itself: that is a part of a step.
Recipe Measuring::recipe_of_trial(const Recipe& recipe) const {
  Recipe made = measured_recipe(recipe);
  made.watch.histograms = recipe.watch.histograms;
  return made;
}

std::unique_ptr<Trial> Measuring::make_trial(const Recipe& recipe, bool save) {
  Trial::Setup setup;
  setup.folder = fmt::format("{}/{}", options_.folder, trials_++);
  setup.data =
      warm_source(*source_, recipe.data.cache, spread_samples(source_->size(), kWarmSamples));
  setup.save = save;
  setup.should_stop = options_.should_stop;
  setup.waiting = [this] { show(doing_); };
  return std::make_unique<Trial>(env_, recipe, std::move(setup));
}

// Steps of a turn that are not measured take time too, and what happens once in some steps shall
// not decide a turn: above the least that shall be, rounds are as many as leave turns enough steps.
Measuring::Plan Measuring::plan_of(double share_s, int turns) const {
  const double step = found_.rate > 0 ? found_.batch / found_.rate : 0;
  const double settling = std::max(step, std::min(kSettlingSteps * step, kLongStep));
  const double fitting = share_s / turns / std::max(settling + kTurnSteps * step, kLeastTurn) - 1;
  const int rounds =
      int(std::clamp<double>(fitting, std::min(kRankedRounds, options_.rounds), options_.rounds));
  return {rounds, std::clamp(share_s / turns / (rounds + 1) - settling, kLeastTurn, kLongestTurn)};
}

bool Measuring::measure_base() {
  show("the recipe itself");
  std::vector<StepTiming> whole, held, input;
  Plan plan = {options_.rounds, kLeastTurn};
  for (int round = -1; round < plan.rounds; ++round) {
    const auto a = base_->measure(Turn::kWhole, plan.turn_s),
               b = base_->measure(Turn::kHeld, plan.turn_s),
               c = base_->measure(Turn::kInput, plan.turn_s);
    if (!a || !b || !c || options_.should_stop()) return false;
    if (round < 0) {  // warming up, which tells how long a step takes
      found_.rate = a->images_per_s();
      found_.batch = found_.recipe.train.batch;
      plan = plan_of(kBaseShare * options_.seconds, 3);
      continue;
    }
    whole.push_back(*a);
    held.push_back(*b);
    input.push_back(*c);
    if (round + 1 >= kLeastRounds && elapsed_s() > 2 * kBaseShare * options_.seconds) break;
  }
  summarise(whole, held, input);
  return measure_interludes();
}

// Work between steps comes too rarely for turns: it is timed by itself.
bool Measuring::measure_interludes() {
  const double size = double(source_->size()), batch = found_.batch;
  const double epoch_steps =
      found_.recipe.train.drop_last ? std::floor(size / batch) : std::ceil(size / batch);
  if (has_evaluation_) {
    show("an evaluation");
    found_.evaluations = {0, evaluations_of(found_.recipe.train, epochs_, epoch_steps)};
    const double limit = kInterludeShare * options_.seconds;
    if (!time_one(Turn::kEvaluate, limit, found_.evaluations.seconds)) return false;
  }
  const double saves = saves_of(found_.recipe.checkpoint, epochs_, epoch_steps, found_.run_s);
  if (saves < 1 || found_.phases[Phase::kCheckpoint] > 0) return true;
  show("a save");
  found_.saves.times = saves;
  return time_one(Turn::kSave, 0, found_.saves.seconds);
}

// The median of a few, without the first, which is slow, or that one alone where it is long.
bool Measuring::time_one(Turn turn, double limit_s, double& seconds) {
  std::vector<double> times;
  const double begin = elapsed_s();
  do {
    const auto timing = base_->measure(turn, limit_s);
    if (!timing || options_.should_stop()) return false;
    times.push_back(timing->wall_s);
  } while (times.size() <= kInterludes && elapsed_s() - begin < limit_s);
  if (times.size() > 1) times.erase(times.begin());
  seconds = median_of(times);
  return true;
}

void Measuring::summarise(const std::vector<StepTiming>& whole, const std::vector<StepTiming>& held,
                          const std::vector<StepTiming>& input) {
  std::vector<double> rates, helds, computes, inputs;
  double cpu = 0, wall = 0, steps = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    rates.push_back(whole[i].images_per_s());
    helds.push_back(held[i].images_per_s());
    // The time of saving is no part of what compute could do.
    computes.push_back(double(held[i].samples) /
                       (held[i].wall_s - held[i].phases[Phase::kCheckpoint]));
    inputs.push_back(input[i].images_per_s());
    cpu += whole[i].cpu_s;
    wall += whole[i].wall_s;
    steps += double(whole[i].steps);
    for (size_t phase = 0; phase < kPhaseCount; ++phase)
      found_.phases.seconds[phase] += whole[i].phases.seconds[phase];
  }
  for (double& seconds : found_.phases.seconds) seconds /= steps;
  found_.rate = median_of(rates);
  found_.compute_rate = median_of(computes);
  found_.input_rate = median_of(inputs);
  found_.without_input = paired_gain(rates, helds);
  found_.input_alone = paired_gain(rates, inputs);
  found_.cores_used = cpu / wall;
  found_.cores = available_cores();
  found_.loader_threads = found_.recipe.data.threads;
  found_.on_gpu = found_.recipe.train.device == "cuda";
  found_.run_s = epochs_ * double(source_->size()) / found_.rate;
}

// Empty where should_stop gave up.
std::optional<Rounds> Measuring::take_turns(Trial& trial, double share_s) {
  const double begin = elapsed_s();
  const Plan plan = plan_of(share_s, 2);
  if (!trial.measure(Turn::kWhole, kLeastTurn)) return std::nullopt;  // the first steps are slow
  Rounds rounds;
  for (int round = 0; round < plan.rounds; ++round) {
    std::array<Trial*, 2> order = {base_.get(), &trial};
    if (round % 2 == 1) std::swap(order[0], order[1]);
    for (Trial* other : order) {
      const auto timing = other->measure(Turn::kWhole, plan.turn_s);
      if (!timing || options_.should_stop()) return std::nullopt;
      (other == &trial ? rounds.after : rounds.before).push_back(timing->images_per_s());
    }
    if (round + 1 < kLeastRounds) continue;
    if (rounds.gain().high < kHopeless || elapsed_s() - begin > share_s) break;
  }
  return rounds;
}

std::optional<Rounds> Measuring::compare(const Recipe& other, double seconds) {
  show("both recipes");
  return take_turns(*make_trial(recipe_of_trial(other), true), seconds);
}

// The most that the removal of this cause can gain, as the recipe's own turns have it.
std::optional<Gain> Measuring::bound_of(const WhatIf& what_if) const {
  if (what_if.cause == Cause::kCheckpointIo) return std::nullopt;  // no turn was without it
  // A setting that was asked for may change input and step alike.
  const auto& asked = options_.tries;
  if (std::find(asked.begin(), asked.end(), what_if.text()) != asked.end()) return std::nullopt;
  if (what_if.cause == Cause::kLogging) {
    const double ratio = 1 / (1 - found_.phases[Phase::kHost] / found_.phases.total());
    return Gain{ratio, ratio, ratio};
  }
  return spares_step(what_if.cause) ? found_.without_input : found_.input_alone;
}

// False where should_stop gave up.
bool Measuring::measure_one(WhatIf& what_if, double share_s) {
  if (!what_if.skipped.empty()) return true;
  const auto bound = bound_of(what_if);
  if (bound && bound->ratio < kWorthGain && bound->high < kOpenGain) {
    what_if.skipped =
        what_if.cause == Cause::kLogging
            ? fmt::format("the host's bookkeeping is {:.1f} % of a step", 100 * saved_share(*bound))
            : fmt::format("{} alone is about {:.2f} times as fast as the recipe",
                          spares_step(what_if.cause) ? "the step" : "input",
                          std::max(1.0, bound->ratio));
    return true;
  }
  if (elapsed_s() > options_.seconds) {
    what_if.skipped = "no time was left: raise --seconds";
    what_if.no_time = found_.is_cut_short = true;
    return true;
  }
  show(what_if.text());
  what_if.gain.reset();
  try {
    Recipe recipe = with_settings(found_.recipe, what_if.settings);
    // The resting run's tensors stay where they are.
    if (recipe.train.memory_gb > 0)
      recipe.train.memory_gb +=
          double(tensor_memory(resolve_device(recipe.train.device)).live_bytes()) / kGiB;
    const bool saves = found_.phases[Phase::kCheckpoint] > 0 || recipe.checkpoint.every_steps > 0;
    const auto rounds = take_turns(*make_trial(recipe_of_trial(recipe), saves), share_s);
    if (rounds) what_if.gain = rounds->gain();
    return rounds.has_value();
  } catch (const Error& error) {
    if (base_->has_failed()) throw;
    what_if.skipped = "does not run: " + error.reason();
  } catch (const std::exception& error) {
    if (base_->has_failed()) throw;
    what_if.skipped = "does not run: " + first_line(error.what());
  }
  return !options_.should_stop();
}

bool Measuring::look_at(std::vector<WhatIf> what_ifs) {
  std::erase_if(what_ifs, [&](const WhatIf& what_if) { return !options_.wanted(what_if); });
  const double left = std::max(0.0, options_.seconds - elapsed_s());
  const double end = elapsed_s() + kLookShare * left;
  for (size_t i = 0; i < what_ifs.size() && !has_enough_; ++i) {
    const double share = std::max(0.0, end - elapsed_s()) / double(what_ifs.size() - i);
    if (!measure_one(what_ifs[i], share)) return false;
    const auto& gain = found_.what_ifs.emplace_back(what_ifs[i]).gain;
    has_enough_ = options_.enough > 0 && gain && gain->low > options_.enough;
    if (has_enough_ && i + 1 < what_ifs.size()) found_.is_cut_short = true;
  }
  return true;
}

// What-ifs that a first look found to pay, or could not tell, get the time left, the best most of
// it. The first look's rounds do not count any more: of many what-ifs, the one that was lucky then
// would seem the best.
bool Measuring::measure_promising() {
  std::vector<WhatIf*> promising;
  for (WhatIf& what_if : found_.what_ifs)
    if (what_if.gain && (is_worth(what_if) || what_if.gain->high >= kOpenGain))
      promising.push_back(&what_if);
  std::sort(promising.begin(), promising.end(),
            [](const WhatIf* a, const WhatIf* b) { return a->gain->ratio > b->gain->ratio; });
  for (size_t i = 0; i < promising.size(); ++i) {
    const double left = options_.seconds - elapsed_s();
    if (left <= 0) break;
    const double share = left / double(std::min(promising.size() - i, kSharers));
    if (!measure_one(*promising[i], share)) return false;
  }
  return true;
}

std::optional<Measurements> Measuring::run() {
  if (!measure_base()) return std::nullopt;
  Machine machine;
  machine.cores = found_.cores;
  machine.on_gpu = found_.on_gpu;
  machine.has_bf16 = machine.on_gpu || cpu_has_bf16();
  machine.augments = machine.on_gpu && has_finish_kernel();
  machine.memory_bytes = double(available_memory());
  const Recipe& recipe = found_.recipe;
  std::vector<WhatIf> all = asked_what_ifs(recipe, options_.tries);
  const auto add = [&](std::vector<WhatIf> more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const auto of_input = input_what_ifs(recipe, machine, facts_);
  const auto of_step = step_what_ifs(recipe, machine, facts_,
                                     found_.phases[Phase::kCheckpoint] / found_.phases.total());
  // First where more can be gained.
  const bool input_first = found_.without_input.ratio > found_.input_alone.ratio;
  add(input_first ? of_input : of_step);
  add(input_first ? of_step : of_input);
  if (!look_at(std::move(all))) return std::nullopt;
  const bool pays =
      std::any_of(found_.what_ifs.begin(), found_.what_ifs.end(), [](const WhatIf& what_if) {
        return what_if.cause == Cause::kAugmentation && what_if.alters == Alters::kTraining &&
               is_worth(what_if);
      });
  if (pays && !look_at(single_effects(recipe))) return std::nullopt;
  if (!has_enough_ && !measure_promising()) return std::nullopt;
  return std::move(found_);
}

std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const DiagnoseOptions& options) {
  return Measuring(env, recipe, options).run();
}

}  // namespace saturate
