#include "advise/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "advise/measured_trainer.h"
#include "base/files.h"
#include "base/printable.h"
#include "record/metrics.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr double kFirstDiagnosis = 45;  // seconds; longer if it is cut short
constexpr double kEnough = 1.5;         // a speedup that is kept before others are measured
constexpr double kCompareShare = 0.1;   // of the time, for the two recipes at the end
constexpr double kSpareShare = 0.05;    // of the time, for turns that last longer than planned
constexpr double kLossShare = 0.06;     // of the time, for one training to compare the loss
constexpr double kLongestLoss = 60;     // seconds
constexpr int64_t kLeastSteps = 8;      // that a loss is taken from

// Whether tuning may use it: not if it is a choice of what to train or to record.
bool is_tunable(const WhatIf& what_if) {
  const auto records = [](const std::string& setting) { return setting.starts_with("watch."); };
  return what_if.cause != Cause::kAugmentation && what_if.cause != Cause::kEvaluation &&
         std::ranges::none_of(what_if.settings, records);
}

double mean_of_last_quarter(Env& env, const std::string& folder, int64_t samples) {
  LineReader lines(env, folder + "/metrics.jsonl");
  double sum = 0, weight = 0;
  int64_t before = 0;
  for (std::string line; lines.next(line);) {
    const auto record = from_json_line(line);
    if (!record || record->kind != "step" || !record->loss) continue;
    const double own = double(record->samples - before);
    before = record->samples;
    if (4 * record->samples <= 3 * samples) continue;
    sum += own * *record->loss;
    weight += own;
  }
  return sum / weight;
}

class Tuner {
 public:
  Tuner(Env& env, const Recipe& recipe, const TuneOptions& options)
      : env_(env), original_(recipe), options_(options), begin_ns_(env.now_ns()) {
    found_.recipe = recipe;
  }

  std::optional<Tuning> run() {
    double seconds = kFirstDiagnosis;
    bool goes_on = true;
    while (goes_on && left_s() > kLeastDiagnosis) {
      const auto measured = measure(env_, found_.recipe, diagnosis(seconds));
      if (!measured) return std::nullopt;
      if (found_.rate_before == 0) start_from(*measured);
      rate_ = measured->rate;
      const Diagnosis found = classify(*measured);
      found_.undecided = found.undecided || measured->is_cut_short;
      const bool improved = apply_best(found.fixes, measured->recipe.train.batch);
      if (options_.should_stop()) return std::nullopt;
      if (!improved && measured->is_cut_short) seconds *= 2;  // a step of seconds takes long
      goes_on = improved || measured->is_cut_short;
    }
    if (!compare()) return std::nullopt;
    return std::move(found_);
  }

 private:
  static constexpr double kLeastDiagnosis = 5;  // seconds

  double total_s() const { return options_.minutes * 60; }
  double left_s() const {
    return total_s() * (1 - kCompareShare - kSpareShare) - double(env_.now_ns() - begin_ns_) * 1e-9;
  }
  std::string next_folder() {
    const std::string folder = fmt::format("{}/part-{}", options_.folder, parts_++);
    env_.make_directories(folder);
    return folder;
  }

  DiagnoseOptions diagnosis(double seconds) {
    DiagnoseOptions made;
    made.folder = next_folder();
    made.seconds = std::min(seconds, left_s() / 2);
    made.rounds = options_.rounds;
    made.enough = kEnough;
    made.progress = options_.progress;
    made.should_stop = options_.should_stop;
    made.wanted = [this](const WhatIf& what_if) {
      return is_tunable(what_if) && !rejected_.contains(what_if.text());
    };
    return made;
  }

  void start_from(const Measurements& measured) {
    found_.unit = measured.unit;
    found_.rate_before = found_.rate_after = measured.rate;
    // A multiple of twice the batch too, or the whole run.
    const int64_t unit = int64_t{4} * measured.recipe.train.batch;
    const double seconds = std::min(kLongestLoss, kLossShare * total_s());
    const auto steps = int64_t(seconds * measured.rate) / unit;
    const auto all = int64_t(std::llround(measured.run_s * measured.rate));
    found_.samples = std::min(std::max(kLeastSteps, steps) * unit, std::max<int64_t>(1, all));
  }

  // The loss of a recipe; empty if should_stop cancelled, or the time is over.
  std::optional<double> loss_of(const Recipe& recipe) {
    return early_loss(env_, recipe, next_folder(), found_.samples,
                      [this] { return options_.should_stop() || left_s() <= 0; });
  }
  // Approximate time to compare the loss of a fix with the original's.
  double loss_cost_s(const Gain& gain) const {
    const double original = found_.loss_before ? 0 : 1 / found_.rate_before;
    return double(found_.samples) * (original + 1 / (rate_ * gain.ratio));
  }

  // Keeps the first fix that leaves the loss as it was; false if there is none.
  bool apply_best(const std::vector<WhatIf>& fixes, int batch) {
    for (const WhatIf& fix : fixes) {
      if (fix.settings.empty() || !is_tunable(fix) || options_.should_stop()) continue;
      TuneStep step = try_fix(fix, batch);
      const bool kept = step.rejected.empty();
      if (kept) found_.recipe = with_settings(found_.recipe, step.settings);
      if (!kept) rejected_.insert(fix.text());
      found_.steps.push_back(std::move(step));
      if (kept) return true;
    }
    return false;
  }

  TuneStep try_fix(const WhatIf& fix, int batch) {
    TuneStep step{fix, fix.settings, std::nullopt, ""};
    add_rate(step.settings, batch);
    if (fix.alters == Alters::kNothing) return step;
    if (const double cost = loss_cost_s(*fix.gain); cost > left_s()) {
      step.rejected = fmt::format(
          "no time to compare the loss, which takes about {:.0f} s: raise --minutes", cost);
      return step;
    }
    try {
      if (!found_.loss_before) found_.loss_before = loss_of(original_);
      step.loss = loss_of(with_settings(found_.recipe, step.settings));
    } catch (const Error& error) {
      step.rejected = error.reason();
      return step;
    }
    if (!step.loss || !found_.loss_before)
      step.rejected = options_.should_stop()
                          ? "stopped"
                          : "comparing the loss took longer than there was time: "
                            "raise --minutes";
    else if (!(*step.loss <= *found_.loss_before * (1 + options_.tolerance)))
      step.rejected =
          fmt::format("the loss is {} instead of {} after {} samples", format_loss(*step.loss),
                      format_loss(*found_.loss_before), found_.samples);
    else
      found_.loss_after = step.loss;
    return step;
  }

  // Adds the learning rate for a changed batch size.
  void add_rate(std::vector<std::string>& settings, int batch) const {
    const int changed = with_settings(found_.recipe, settings).train.batch;
    if (changed == found_.recipe.train.batch || changed == batch) return;
    const OptimizerOptions& optimizer = found_.recipe.optimizer;
    settings.push_back(
        fmt::format("optimizer.lr={:g}", scaled_rate(optimizer, double(changed) / double(batch))));
  }

  // False if should_stop cancelled.
  bool compare() {
    const auto is_kept = [](const TuneStep& step) { return step.rejected.empty(); };
    if (std::ranges::none_of(found_.steps, is_kept)) return true;
    DiagnoseOptions options = diagnosis(0);
    options.seconds = std::max(kLeastDiagnosis, kCompareShare * total_s());
    const auto rounds = saturate::compare(env_, original_, found_.recipe, options);
    if (!rounds) return false;
    found_.rate_before = median_of(rounds->before);
    found_.rate_after = median_of(rounds->after);
    found_.gain = rounds->gain();
    return true;
  }

  Env& env_;
  const Recipe original_;
  const TuneOptions options_;
  const int64_t begin_ns_;
  int parts_ = 0;
  double rate_ = 0;  // images/s of the recipe so far
  std::set<std::string> rejected_;
  Tuning found_;
};

}  // namespace

double scaled_rate(const OptimizerOptions& optimizer, double batch_ratio) {
  return optimizer.lr * (traits_of(optimizer).is_adaptive ? std::sqrt(batch_ratio) : batch_ratio);
}

std::optional<Tuning> tune(Env& env, const Recipe& recipe, const TuneOptions& options) {
  return Tuner(env, recipe, options).run();
}

std::optional<double> early_loss(Env& env, Recipe recipe, const std::string& folder,
                                 int64_t samples, const std::function<bool()>& should_stop) {
  skip_evaluations(recipe);
  recipe.train.max_minutes = 0;
  watch_little(recipe.watch);
  recipe.watch.every = 1;
  int64_t trained = 0;
  {
    Trainer trainer(env, recipe, measured_options(folder, should_stop));
    while (trained < samples && trainer.step()) trained = trainer.so_far().samples;
  }  // its records are complete
  if (should_stop()) return std::nullopt;
  return mean_of_last_quarter(env, folder, trained);
}

}  // namespace saturate
