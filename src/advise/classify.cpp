// From measurements to a cause and what to do about it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "advise/what_ifs.h"
#include "base/printable.h"

namespace saturate {
namespace {

struct CauseText {
  std::string_view name;
  std::string_view what;  // the beginning of the summary
  // Among causes of about the same speedup, the lowest is named: first errors in the use of the
  // machine, whose removal costs nothing, then trade-offs.
  int order;
};

constexpr std::array<CauseText, kCauseCount> kCauses = {{
    {"input-threads", "data.threads or data.prefetch is set wrong", 1},
    {"decode", "Decoding images is the bottleneck", 11},
    {"storage", "Reading samples is the bottleneck", 0},
    {"augmentation", "Augmenting images is the bottleneck", 12},
    {"copy", "Copying batches to the device is the bottleneck", 10},
    {"host-sync", "The host waits for the device within the step", 5},
    {"launch-overhead", "Launching operators costs more than their work", 13},
    {"small-batch", "The batch is too small to fill the hardware", 15},
    {"precision", "The hardware is faster in another precision", 14},
    {"layout", "The memory order of images and weights slows convolutions", 7},
    {"communication", "Processes wait for each other's gradients", 9},
    {"straggler", "One process slows down the others", 8},
    {"checkpoint-io", "Saving checkpoints is the bottleneck", 2},
    {"memory", "A setting that saves memory costs time", 6},
    {"evaluation", "Evaluation is the bottleneck", 3},
    {"logging", "Recording the run is the bottleneck", 4},
    {"compute-bound", "The model's computation is the limit", 16},
}};

const CauseText& text_of(Cause cause) {
  return kCauses[size_t(cause)];
}

// Speedups are about the same if the ratio of their logarithms is at least this.
constexpr double kAlike = 0.9;
// A cache of decoded images also avoids reading them: storage is the cause from this ratio on.
constexpr double kHalf = 0.5;
// Idle cores are the cause from this speedup on, whatever less work for each image would gain.
constexpr double kIdleCores = 1.25;
// The share of cores in use from which on more threads do not help.
constexpr double kBusyCores = 0.9;

// Shares of training that are called rare.
constexpr double kEvaluationShare = 0.05;
constexpr double kSaveShare = 0.01;

double least_gain(const WhatIf& what_if) {
  const bool costs = what_if.alters == Alters::kTraining || what_if.cause == Cause::kEvaluation;
  return costs ? kWorthGainTraining : kWorthGain;
}

WhatIf inferred(Cause cause, const Gain& gain, std::string note,
                std::vector<std::string> settings = {}) {
  return {.cause = cause,
          .settings = std::move(settings),
          .note = std::move(note),
          .gain = gain,
          .measured = false};
}

// The maximum speedup of a step without copying: by the ledger's share of it, and, if that was
// measured, at most that of the held batch, which is on the device.
void infer_copy(const Measurements& found, std::vector<WhatIf>& what_ifs) {
  const double total = found.phases.total();
  const double share = total > 0 ? found.phases[Phase::kCopy] / total : 0;
  if (share <= 0 || share >= 1) return;
  const double ratio = 1 / (1 - share);
  const Gain held = found.ranks.empty() ? found.without_input : exactly(ratio);
  const Gain gain = {std::min(ratio, held.ratio), std::min(ratio, held.low),
                     std::min(ratio, held.high)};
  const WhatIf what_if = inferred(Cause::kCopy, gain, "at most, if no step waited in copy");
  if (is_worth(what_if)) what_ifs.push_back(what_if);
}

// The speedup of training if `now` happened `times` times instead.
Gain gain_of_fewer(const Interlude& now, double times, double whole_s) {
  return exactly(whole_s / (whole_s - now.seconds * (now.times - times)));
}

// An interval that is `factor` times as long, within its key's range.
int rarer(int every, double factor, double most) {
  return int(std::min(most, std::round(every * factor)));
}

// The factor on an interval with which its work takes no more than `share` of the time.
double factor_for(double taken, double share) {
  return std::max(2.0, std::ceil(taken / (1 - taken) / share - 1e-9));
}

void infer_evaluation(const Measurements& found, std::vector<WhatIf>& what_ifs) {
  const Interlude& now = found.evaluations;
  const double share = found.evaluation_share();
  if (share <= 0) return;
  if (now.times <= 1) {  // the one at the end
    what_ifs.push_back(
        inferred(Cause::kEvaluation, gain_of_fewer(now, 0, found.whole_s()), "at most"));
    return;
  }
  const double factor = factor_for(share, kEvaluationShare);
  const auto evaluate_rarely = [&](Recipe& recipe) {
    TrainOptions& each = recipe.train;
    each.eval_every = rarer(each.eval_every, factor, 1 << 20);
    each.eval_every_steps = rarer(each.eval_every_steps, factor, 1 << 30);
  };
  what_ifs.push_back(inferred(
      Cause::kEvaluation, gain_of_fewer(now, std::max(1.0, now.times / factor), found.whole_s()),
      "early_stop, plateau and the choice of the best weights see fewer evaluations",
      {setting_after(found.recipe, "train.eval_every", evaluate_rarely)}));
}

// For saves outside measured turns; the others were measured.
void infer_saves(const Measurements& found, std::vector<WhatIf>& what_ifs) {
  const Interlude& now = found.saves;
  const double whole = found.whole_s();
  if (whole <= 0 || now.total_s() <= 0) return;
  const double factor = factor_for(now.total_s() / whole, kSaveShare);
  const auto save_rarely = [&](Recipe& recipe) {
    CheckpointOptions& each = recipe.checkpoint;
    each.every = rarer(each.every, factor, 1 << 20);
    each.every_steps = rarer(each.every_steps, factor, 1 << 30);
    each.every_minutes *= factor;
  };
  what_ifs.push_back(inferred(Cause::kCheckpointIo, gain_of_fewer(now, now.times / factor, whole),
                              "a failure loses proportionally more work",
                              {setting_after(found.recipe, "checkpoint.every", save_rarely)}));
  if (found.recipe.checkpoint.background) return;
  const auto in_background = [](Recipe& recipe) { recipe.checkpoint.background = true; };
  what_ifs.push_back(inferred(Cause::kCheckpointIo, gain_of_fewer(now, 0, whole),
                              "at most, if saving slows no step",
                              {setting_after(found.recipe, "debug.off", in_background)}));
}

// The speedup of training from that of its steps, which are a share of it.
Gain of_training(const Gain& steps, double share) {
  const auto scaled = [share](double ratio) { return 1 / (1 - share + share / ratio); };
  return {scaled(steps.ratio), scaled(steps.low), scaled(steps.high)};
}

// `fixes`: not empty, by gain.
Cause cause_of(const std::vector<WhatIf>& fixes, const Measurements& found) {
  const WhatIf& top = fixes.front();
  const bool idle_cores = found.cores_used < kBusyCores * found.cores;
  double storage = 0;
  for (const WhatIf& fix : fixes)
    if (fix.cause == Cause::kStorage) storage = std::max(storage, fix.gain->ratio);
  Cause cause = top.cause;
  for (const WhatIf& fix : fixes) {
    const double alike = std::log(fix.gain->ratio) / std::log(top.gain->ratio);
    const bool reading = fix.cause == Cause::kStorage && top.cause == Cause::kDecode;
    const bool starved = fix.cause == Cause::kInputThreads && is_input(top.cause) && idle_cores &&
                         fix.gain->ratio >= kIdleCores && fix.gain->ratio > storage;
    if ((alike >= (reading ? kHalf : kAlike) || starved) &&
        text_of(fix.cause).order < text_of(cause).order)
      cause = fix.cause;
  }
  return cause;
}

// For input that would have to be faster, with no change worth doing: the cause of the change with
// the largest speedup.
Cause cause_of_input(const Diagnosis& diagnosis) {
  const WhatIf* best = nullptr;
  for (const auto* list : {&diagnosis.uncertain, &diagnosis.idle})
    for (const WhatIf& what_if : *list)
      if (is_input(what_if.cause) && (!best || what_if.gain->ratio > best->gain->ratio))
        best = &what_if;
  return best ? best->cause : Cause::kDecode;
}

std::string gain_text(const Gain& gain) {
  return gain.low == gain.high ? fmt::format("{:.2f} times as fast", gain.ratio)
                               : fmt::format("{:.2f} times as fast [{:.2f}, {:.2f}]", gain.ratio,
                                             gain.low, gain.high);
}

std::string limits_text(const Measurements& found) {
  return fmt::format("compute alone does {:.0f} {}/s and input alone {:.0f}", found.compute_rate,
                     found.unit, found.input_rate);
}

// The network's part of the steps' wait; empty if there is none.
std::string network_text(const Measurements& found) {
  const double wait = found.phases[Phase::kWait], network = found.phases.network_wait;
  if (network <= 0.005 * found.phases.total()) return "";
  return fmt::format(
      "; steps wait for input for {:.0f} % of their time, of which {:.0f} % is the network's",
      100 * wait / found.phases.total(), 100 * network / wait);
}

const WhatIf& fix_for_cause(const Diagnosis& diagnosis) {
  return *std::ranges::find(diagnosis.fixes, diagnosis.cause, &WhatIf::cause);
}

// The number of changes that were not measured for lack of time.
size_t untimed(const Diagnosis& diagnosis) {
  return size_t(std::ranges::count(diagnosis.skipped, true, &WhatIf::no_time));
}

// The number of changes with which the run fails.
size_t failed(const Diagnosis& diagnosis) {
  return size_t(std::ranges::count(diagnosis.skipped, true, &WhatIf::failed));
}

std::string too_little(const Diagnosis& diagnosis, const Measurements& found) {
  if (untimed(diagnosis) == 0 && diagnosis.uncertain.empty())
    return fmt::format("No change could be measured: the run fails with each of {}",
                       failed(diagnosis));
  std::string why;
  if (const size_t count = untimed(diagnosis); count > 0)
    why = fmt::format("{} of {} changes had no time", count, found.what_ifs.size());
  if (!diagnosis.uncertain.empty())
    why += fmt::format("{}{} may gain {:.2f} times or more, or nothing", why.empty() ? "" : ", ",
                       diagnosis.uncertain.size(), kOpenGain);
  return fmt::format(
      "Too little was measured to tell ({}): raise --seconds, or measure on a quieter machine",
      why);
}

std::string interlude_text(double share, const Interlude& each) {
  std::string text = fmt::format(": {:.0f} % of the training", 100 * share);
  if (each.times > 0)
    text += fmt::format(", {} for each of {:.0f}", format_duration(each.seconds), each.times);
  return text;
}

std::string summary_of_group(const Diagnosis& diagnosis, const Measurements& found) {
  if (diagnosis.undecided) return too_little(diagnosis, found);
  if (diagnosis.healthy)
    return fmt::format(
        "No change between the {} processes is worth making: they wait for each other for {:.0f} % "
        "of their time. Diagnose a single process to find other bottlenecks",
        found.ranks.size(), 100 * (1 - diagnosis.efficiency));
  std::string text(text_of(diagnosis.cause).what);
  if (diagnosis.cause == Cause::kStraggler) text += ": " + straggler_text(found.ranks);
  if (diagnosis.cause == Cause::kEvaluation)
    text += interlude_text(found.evaluation_share(), found.evaluations);
  if (diagnosis.cause == Cause::kCheckpointIo)
    text += interlude_text(found.checkpoint_share(), found.saves);
  const WhatIf& fix = fix_for_cause(diagnosis);
  return text + fmt::format("; {} {:.2f} times as fast",
                            fix.settings.empty() ? "without it the run would be"
                                                 : fix.text() + " makes the run",
                            fix.gain->ratio);
}

// For a setting that has a cost of its own, that.
std::string_view what_of(const WhatIf& fix, const Measurements& found) {
  static constexpr std::pair<std::string_view, std::string_view> kOfMemory[] = {
      {"train.checkpoint_", "Activations are recomputed to save memory"},
      {"train.accumulate", "The batch is split into micro-batches to save memory"},
      {"debug.off", "Memory is freed and allocated again in every step"},
      {"train.batch", "The batch is larger than the machine computes efficiently"}};
  const std::string text = fix.text();
  if (fix.cause == Cause::kMemory)
    for (const auto& [key, what] : kOfMemory)
      if (text.starts_with(key)) return what;
  if (fix.cause == Cause::kHostSync && text.starts_with("debug.checks"))
    return "Anomaly detection checks every operator";
  if (fix.cause == Cause::kHostSync && !found.on_gpu && !found.recipe.train.late_metrics)
    return "Loss and accuracy are read within the step";
  // The setting lists what stays off.
  if (fix.cause == Cause::kLayout && found.recipe.train.cudnn_benchmark &&
      text.find("cudnn_heuristics") == std::string::npos)
    return "cuDNN times its algorithms for each new shape";
  return text_of(fix.cause).what;
}

// About samples that are tensors, if they are.
std::string in_unit(std::string text, const std::string& unit) {
  constexpr std::string_view kImages = "images";
  const size_t at = text.find(kImages);
  return at == std::string::npos ? text : text.replace(at, kImages.size(), unit);
}

std::string summary_of(const Diagnosis& diagnosis, const Measurements& found) {
  if (found.ranks.size() > 1) return summary_of_group(diagnosis, found);
  if (diagnosis.undecided) return too_little(diagnosis, found);
  if (diagnosis.healthy) {
    std::string text = fmt::format(
        "No change is worth making: this step runs at {:.0f} % of the slower of input and compute "
        "({})",
        100 * diagnosis.efficiency, limits_text(found));
    if (diagnosis.cause != Cause::kComputeBound)
      text += fmt::format("; the rest is {}", cause_name(diagnosis.cause));
    if (is_input(diagnosis.cause)) text += network_text(found);
    return text;
  }
  const WhatIf& fix = fix_for_cause(diagnosis);
  std::string text = in_unit(std::string(what_of(fix, found)), found.unit);
  if (diagnosis.cause == Cause::kInputThreads)
    text += fmt::format(" ({} loader thread{}, {:.1f} of {} cores in use)", found.loader_threads,
                        found.loader_threads == 1 ? "" : "s", found.cores_used, found.cores);
  if (diagnosis.cause == Cause::kSmallBatch)
    text += fmt::format(" ({} {})", found.batch, found.unit);
  if (diagnosis.cause == Cause::kEvaluation)
    text += interlude_text(found.evaluation_share(), found.evaluations);
  else if (diagnosis.cause == Cause::kCheckpointIo && !fix.measured)
    text += interlude_text(found.checkpoint_share(), found.saves);
  else
    text += fmt::format(": {:.0f} {}/s, where {}", found.rate, found.unit, limits_text(found));
  if (is_input(diagnosis.cause)) text += network_text(found);
  const std::string settings = fix.text();
  return text +
         fmt::format("; {} {}",
                     settings.empty() ? "without it the run would be" : settings + " makes it",
                     gain_text(*fix.gain));
}

}  // namespace

std::string_view cause_name(Cause cause) {
  return text_of(cause).name;
}

std::string WhatIf::text() const {
  return fmt::format("{}", fmt::join(settings, " "));
}

double Measurements::whole_s() const {
  return run_s + evaluations.total_s() + saves.total_s();
}

double Measurements::evaluation_share() const {
  return run_s > 0 ? evaluations.total_s() / whole_s() : 0;
}

double Measurements::phase_share(Phase phase) const {
  return run_s > 0 && phases.total() > 0 ? phases[phase] / phases.total() * run_s / whole_s() : 0;
}

double Measurements::checkpoint_share() const {
  return run_s > 0 ? phase_share(Phase::kCheckpoint) + saves.total_s() / whole_s() : 0;
}

bool is_worth(const WhatIf& what_if) {
  return what_if.gain && is_worth(*what_if.gain, least_gain(what_if));
}

bool may_be_worth(const WhatIf& what_if) {
  return what_if.gain && may_be_worth(*what_if.gain, least_gain(what_if));
}

Diagnosis classify(const Measurements& found) {
  Diagnosis diagnosis;
  std::vector<WhatIf> all = found.what_ifs;
  const bool grouped = found.ranks.size() > 1;
  if (grouped)
    for (WhatIf& what_if : group_what_ifs(found)) all.push_back(std::move(what_if));
  if (found.on_gpu) infer_copy(found, all);
  if (found.whole_s() > found.run_s && found.run_s > 0) {
    for (WhatIf& what_if : all)
      if (what_if.gain) what_if.gain = of_training(*what_if.gain, found.run_s / found.whole_s());
    infer_evaluation(found, all);
    infer_saves(found, all);
  }
  for (const WhatIf& what_if : all)
    (!what_if.gain           ? diagnosis.skipped
     : is_worth(what_if)     ? diagnosis.fixes
     : may_be_worth(what_if) ? diagnosis.uncertain
                             : diagnosis.idle)
        .push_back(what_if);
  for (auto* list : {&diagnosis.fixes, &diagnosis.uncertain, &diagnosis.idle})
    std::ranges::stable_sort(*list, std::greater(),
                             [](const WhatIf& what_if) { return what_if.gain->ratio; });
  const double ceiling = std::min(found.compute_rate, found.input_rate);
  diagnosis.efficiency = grouped       ? group_efficiency(found.ranks)
                         : ceiling > 0 ? std::min(1.0, found.rate / ceiling)
                                       : 0;
  const bool none_runs = diagnosis.idle.empty() && failed(diagnosis) > 0;
  diagnosis.undecided = diagnosis.fixes.empty() &&
                        (untimed(diagnosis) > 0 || none_runs || !diagnosis.uncertain.empty());
  diagnosis.healthy = diagnosis.fixes.empty() && !diagnosis.undecided;
  // Input that is faster than compute only shares the cores with it.
  const bool starved = found.without_input.ratio >= kWorthGain && found.without_input.low > 1 &&
                       found.input_rate < found.compute_rate;
  if (!diagnosis.fixes.empty())
    diagnosis.cause = cause_of(diagnosis.fixes, found);
  else if (starved)
    diagnosis.cause = cause_of_input(diagnosis);
  diagnosis.summary = without_queries(summary_of(diagnosis, found));
  return diagnosis;
}

}  // namespace saturate
