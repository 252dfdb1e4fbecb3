// Measures a recipe and its what-ifs: the recipe's own run exists throughout, together with one
// changed run at a time; the two are interleaved.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "advise/diagnose.h"
#include "advise/measured_link.h"
#include "advise/measured_trainer.h"
#include "advise/warm_source.h"
#include "advise/what_ifs.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "data/source_index.h"
#include "feed/finish_batch.h"
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

// Whether a step on the held batch is without this cause: on a GPU the batch is there already.
bool spares_step(Cause cause) {
  return is_input(cause) || cause == Cause::kCopy;
}

bool has_bf16(const std::string& device) {
  return resolve_precision(PrecisionMode::kAuto, resolve_device(device)) == PrecisionMode::kBf16;
}

// Shares of the time.
constexpr double kBaseShare = 0.25;       // for the recipe itself
constexpr double kInterludeShare = 0.05;  // for evaluations, and at most for one
constexpr double kLookShare = 0.5;        // of the rest, for a first look at each what-if
constexpr size_t kSharers = 2;            // promising what-ifs that share the time left
constexpr size_t kInterludes = 3;         // that are timed, if they are short
constexpr double kLeastTurn = 0.05;       // seconds
constexpr double kLongestTurn = 2;        // seconds
constexpr double kSettlingSteps = 3;      // of a turn, about; one if it is long
constexpr double kTurnSteps = 10;         // measured in a turn, if time allows
constexpr int kRankedRounds = 6;          // minimum for gain.h's signed-rank interval
constexpr double kHopeless = 1.02;        // a what-if is dropped if its interval ends below
constexpr size_t kWarmSamples = 256;      // in place of a source in memory
constexpr size_t kExamined = 32;          // samples whose formats are read
constexpr double kGiB = 1 << 30;

class Measuring {
 public:
  // Opens the source and builds the recipe's own run; fails as those do.
  Measuring(Env& env, const Recipe& recipe, const DiagnoseOptions& options)
      : env_(env), options_(options), epochs_(recipe.train.epochs), begin_ns_(env.now_ns()) {
    if (options.progress != Progress::Style::kSilent)
      progress_.emplace(env, "diagnose", "s", int64_t(options.seconds), options.progress);
    show("opening " + recipe.data.source);
    const int threads = recipe.data.threads > 0 ? recipe.data.threads : available_cores();
    source_ = stage_dataset(env, open_dataset(env, recipe.data.source, recipe.data.store_options()),
                            recipe.data.source, recipe.data.stage, threads);
    if (recipe.data.decode == DecodeMode::kFast)
      source_ = with_index(std::move(source_),
                           open_source_index(env, recipe.data.source, recipe.data.index));
    facts_ = source_facts(*source_, spread_samples(source_->size(), kExamined));
    // Settings asked for are checked before any time is spent.
    for (const std::string& setting : options.tries) with_settings(recipe, {setting});
    show("building the run");
    Recipe base = measured_with_evaluation(recipe, options.wanted({.cause = Cause::kEvaluation}));
    base.watch.histograms = recipe.watch.histograms;
    base_ = make_trial(base);
    found_.recipe = without_evaluation(base_->recipe(), recipe.train);
  }

  // Empty if should_stop cancelled, like the result of compare().
  std::optional<Measurements> run() {
    if (!measure_base()) return std::nullopt;
    const bool on_gpu = found_.on_gpu;
    const Machine machine = {.cores = found_.cores,
                             .on_gpu = on_gpu,
                             .has_bf16 = has_bf16(found_.recipe.train.device),
                             .augments = on_gpu && has_finish_kernel(),
                             .memory_bytes = double(available_memory())};
    const Recipe& recipe = found_.recipe;
    std::vector<WhatIf> all = asked_what_ifs(recipe, options_.tries);
    auto first = input_what_ifs(recipe, machine, facts_);
    auto second = step_what_ifs(recipe, machine, facts_,
                                found_.phases[Phase::kCheckpoint] / found_.phases.total());
    // The side with the larger possible speedup comes first.
    if (found_.without_input.ratio <= found_.input_alone.ratio) std::swap(first, second);
    for (const auto* more : {&first, &second}) all.insert(all.end(), more->begin(), more->end());
    if (!look_at(std::move(all))) return std::nullopt;
    const bool pays = std::ranges::any_of(found_.what_ifs, [](const WhatIf& what_if) {
      return what_if.cause == Cause::kAugmentation && what_if.alters == Alters::kTraining &&
             is_worth(what_if);
    });
    if (pays && !look_at(single_effects(recipe))) return std::nullopt;
    if (!has_enough_ && !measure_promising()) return std::nullopt;
    return std::move(found_);
  }

  std::optional<Rounds> compare(const Recipe& other) {
    show("both recipes");
    return take_turns(*make_trial(recipe_of_trial(other)), options_.seconds);
  }

 private:
  struct Plan {
    int rounds;
    double turn_s;
  };

  double elapsed_s() const { return double(env_.now_ns() - begin_ns_) * 1e-9; }

  void show(const std::string& what) {
    doing_ = what;
    if (progress_)
      progress_->update(std::min(int64_t(elapsed_s()), int64_t(options_.seconds)), what);
  }

  // The run's records are part of a step.
  Recipe recipe_of_trial(const Recipe& recipe) const {
    Recipe made = measured_recipe(recipe);
    made.watch.histograms = recipe.watch.histograms;
    return made;
  }

  // As warm_source(). If a cache is tried, its few samples would soon all be in the index, unlike
  // those of the recipe's own run: so its run uses the points found by the latter, and adds none.
  std::unique_ptr<Dataset> source_of(const Recipe& recipe) const {
    const auto keeps = [](const Recipe& of) { return of.data.cache.mode == CacheMode::kRam; };
    auto source =
        warm_source(*source_, recipe.data.cache, spread_samples(source_->size(), kWarmSamples));
    SourceIndex* const index = source_->source_index();
    const bool shares = !keeps(recipe) || !base_ || keeps(base_->recipe());
    if (shares || !index || !index->points()) return source;
    return with_index(std::move(source), borrowed_index(env_, *index));
  }

  // Each trial reads samples that no other run has read, or reads next, as long as the epoch has
  // any: from slow storage, what the system still has in memory would look like a gain.
  void go_to_new_samples(Trial& trial) const {
    constexpr double kGoldenRatio = 0.6180339887498949;  // its multiples modulo 1 are spread evenly
    const double read = base_->place();
    trial.go_to(read + (1 - read) * std::fmod(kGoldenRatio * trials_, 1.0));
  }

  std::unique_ptr<Trial> make_trial(const Recipe& recipe) {
    const auto should_stop = [this] {
      show(doing_);
      return options_.should_stop();
    };
    TrainerOptions options = measured_options(fmt::format("{}/{}", options_.folder, trials_++),
                                              should_stop, /*group=*/nullptr, /*save=*/true);
    options.dataset = source_of(recipe);
    auto trial = std::make_unique<Trial>(env_, recipe, std::move(options));
    if (base_) go_to_new_samples(*trial);
    return trial;
  }

  // For a share of the time and so many turns in a round: as many rounds as leave each turn enough
  // steps. A turn's warm-up takes time too, and work of some steps only must not decide a turn.
  Plan plan_of(double share_s, int turns) const {
    const double step = found_.rate > 0 ? found_.batch / found_.rate : 0;
    const double settling = std::max(step, std::min(kSettlingSteps * step, kLongStep));
    const double fitting = share_s / turns / std::max(settling + kTurnSteps * step, kLeastTurn) - 1;
    const int rounds =
        int(std::clamp<double>(fitting, std::min(kRankedRounds, options_.rounds), options_.rounds));
    return {rounds,
            std::clamp(share_s / turns / (rounds + 1) - settling, kLeastTurn, kLongestTurn)};
  }

  bool measure_base() {
    show("the recipe itself");
    std::vector<StepTiming> whole, held, input;
    MeasuredLink link(env_, found_.recipe, *source_);
    Plan plan = {options_.rounds, kLeastTurn};
    for (int round = -1; round < plan.rounds; ++round) {
      const auto a = base_->measure(Turn::kWhole, plan.turn_s),
                 b = base_->measure(Turn::kHeld, plan.turn_s);
      link.begin();
      const auto c = base_->measure(Turn::kInput, plan.turn_s);
      if (round >= 0) link.end();
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
    found_.link = link.result(found_.phases);
    return measure_interludes();
  }

  // Work between steps is too rare for turns: it is timed separately.
  bool measure_interludes() {
    const double epoch_steps = base_->epoch_steps();
    if (!base_->recipe().data.eval_source.empty()) {
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

  // The median of a few, without the first, which is slow; only the first if it takes long.
  bool time_one(Turn turn, double limit_s, double& seconds) {
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

  void summarise(const std::vector<StepTiming>& whole, const std::vector<StepTiming>& held,
                 const std::vector<StepTiming>& input) {
    const auto rates = rates_of(whole), inputs = rates_of(input);
    std::vector<double> computes;  // without the time of saving
    for (const StepTiming& timing : held)
      computes.push_back(double(timing.samples) /
                         (timing.wall_s - timing.phases[Phase::kCheckpoint]));
    const StepTiming sum = sum_of(whole);
    found_.phases = divided(sum.phases, double(sum.steps));
    found_.rate = median_of(rates);
    found_.compute_rate = median_of(computes);
    found_.input_rate = median_of(inputs);
    found_.without_input = paired_gain(rates, rates_of(held));
    found_.input_alone = paired_gain(rates, inputs);
    found_.cores_used = sum.cores_used();
    found_.cores = available_cores();
    if (facts_.is_tensors) found_.unit = "samples";
    found_.loader_threads = found_.recipe.data.threads;
    found_.on_gpu = found_.recipe.train.device == "cuda";
    found_.run_s = epochs_ * double(source_->size()) / found_.rate;
  }

  // Empty if should_stop cancelled.
  std::optional<Rounds> take_turns(Trial& trial, double share_s) {
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

  // The maximum speedup from removing this cause, by the recipe's own turns.
  std::optional<Gain> bound_of(const WhatIf& what_if) const {
    if (what_if.cause == Cause::kCheckpointIo) return std::nullopt;  // it is in every turn
    // A setting of --try may change input and step alike.
    if (std::ranges::count(options_.tries, what_if.text()) > 0) return std::nullopt;
    if (what_if.cause == Cause::kLogging)
      return exactly(1 / (1 - found_.phases[Phase::kHost] / found_.phases.total()));
    return spares_step(what_if.cause) ? found_.without_input : found_.input_alone;
  }

  // False if should_stop cancelled.
  bool measure_one(WhatIf& what_if, double share_s) {
    if (!what_if.skipped.empty()) return true;
    const auto bound = bound_of(what_if);
    if (bound && bound->ratio < kWorthGain && bound->high < kOpenGain) {
      what_if.skipped = what_if.cause == Cause::kLogging
                            ? fmt::format("the host's bookkeeping is {:.1f} % of a step",
                                          100 * saved_share(*bound))
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
      // The resting run's tensors stay in memory.
      if (recipe.train.memory_gb > 0)
        recipe.train.memory_gb +=
            double(tensor_memory(resolve_device(recipe.train.device)).live_bytes()) / kGiB;
      const auto rounds = take_turns(*make_trial(recipe_of_trial(recipe)), share_s);
      if (rounds) what_if.gain = rounds->gain();
      return rounds.has_value();
    } catch (const std::exception& error) {
      if (base_->has_failed()) throw;
      const auto* const own = dynamic_cast<const Error*>(&error);
      what_if.skipped = "does not run: " + (own ? own->reason() : first_line(error.what()));
      what_if.failed = true;
    }
    return !options_.should_stop();
  }

  bool look_at(std::vector<WhatIf> what_ifs) {
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

  // Divides the time left among the what-ifs that a first look found worth doing or unclear, most
  // of it to the best. The rounds of the first look no longer count: among many what-ifs the best
  // in them may be so by chance.
  bool measure_promising() {
    std::vector<WhatIf*> promising;
    for (WhatIf& what_if : found_.what_ifs)
      if (what_if.gain && (is_worth(what_if) || what_if.gain->high >= kOpenGain))
        promising.push_back(&what_if);
    std::ranges::sort(promising, std::ranges::greater(),
                      [](const WhatIf* each) { return each->gain->ratio; });
    for (size_t i = 0; i < promising.size(); ++i) {
      const double left = options_.seconds - elapsed_s();
      if (left <= 0) break;
      const double share = left / double(std::min(promising.size() - i, kSharers));
      if (!measure_one(*promising[i], share)) return false;
    }
    return true;
  }

  Env& env_;
  const DiagnoseOptions& options_;
  const double epochs_;  // of the training
  const int64_t begin_ns_;
  std::optional<Progress> progress_;
  std::string doing_;
  std::unique_ptr<Dataset> source_;
  SourceFacts facts_;
  Measurements found_;
  bool has_enough_ = false;
  int trials_ = 0;               // made so far
  std::unique_ptr<Trial> base_;  // last: it uses all of the above
};

}  // namespace

Recipe with_settings(const Recipe& recipe, const std::vector<std::string>& settings) {
  return parse_recipe(to_toml(recipe), "what if", settings);
}

std::optional<Rounds> compare(Env& env, const Recipe& recipe, const Recipe& other,
                              const DiagnoseOptions& options) {
  return Measuring(env, recipe, options).compare(other);
}

std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const DiagnoseOptions& options) {
  return Measuring(env, recipe, options).run();
}

}  // namespace saturate
