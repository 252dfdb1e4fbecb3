#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "saturate/schedule.h"

namespace saturate {
namespace {

double progress(const CurvePoint& at) {
  return std::min(1.0, double(at.step) / double(at.total));
}

int64_t to_steps(double epochs, const CurvePoint& at) {
  return std::llround(epochs * double(at.epoch));
}

// From `a` to `b` as `share` goes from 0 to 1, along a half cosine.
double half_cosine(double a, double b, double share) {
  return b + (a - b) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

// Also the curve of "plateau", whose factor comes from plateau_.
double constant(const ScheduleOptions& /*options*/, const CurvePoint& /*at*/) {
  return 1;
}

double step(const ScheduleOptions& options, const CurvePoint& at) {
  return std::pow(options.gamma, double(at.step / to_steps(options.every_epochs, at)));
}

double multistep(const ScheduleOptions& options, const CurvePoint& at) {
  const auto passed = std::count_if(options.milestones.begin(), options.milestones.end(),
                                    [&](double epochs) { return to_steps(epochs, at) <= at.step; });
  return std::pow(options.gamma, double(passed));
}

double exponential(const ScheduleOptions& options, const CurvePoint& at) {
  return std::pow(options.gamma, double(at.step) / (options.every_epochs * double(at.epoch)));
}

// SGDR (https://arxiv.org/abs/1608.03983), eq. 5, without restarts.
double cosine(const ScheduleOptions& options, const CurvePoint& at) {
  return half_cosine(1, options.final_lr, progress(at));
}

// The same with restarts, each period restart_mult times as long as the one before.
double cosine_restarts(const ScheduleOptions& options, const CurvePoint& at) {
  int64_t period = to_steps(options.every_epochs, at), step = at.step;
  if (options.restart_mult == 1) step %= period;
  while (step >= period) {
    step -= period;
    period *= options.restart_mult;
  }
  return half_cosine(1, options.final_lr, double(step) / double(period));
}

// Super-convergence (https://arxiv.org/abs/1708.07120) as torch's OneCycleLR: from `begin` to `top`
// over schedule.rise of the steps, then to `end`, reached at the last step.
double cycle(const ScheduleOptions& options, const CurvePoint& at, double begin, double top,
             double end) {
  const double last = double(at.total) - 1, turn = options.rise * double(at.total) - 1;
  const double step = std::min(double(at.step), last);
  if (step <= turn) return half_cosine(begin, top, step / turn);
  return half_cosine(top, end, (step - turn) / (last - turn));
}

// With schedule.per = "epoch", the cycle is over epochs, like a OneCycleLR whose step() is called
// after each epoch: peak and end are at epoch boundaries. For the other curves the value at an
// epoch's first step is the same in both units.
CurvePoint in_epochs(const CurvePoint& at) {
  return {at.step / at.epoch, (at.total + at.epoch - 1) / at.epoch, 1};
}

double onecycle(const ScheduleOptions& options, const CurvePoint& at) {
  return cycle(options, at, options.initial_lr, 1, options.final_lr);
}

double linear(const ScheduleOptions& options, const CurvePoint& at) {
  return 1 + (options.final_lr - 1) * progress(at);
}

double polynomial(const ScheduleOptions& options, const CurvePoint& at) {
  return options.final_lr + (1 - options.final_lr) * std::pow(1 - progress(at), options.power);
}

using Traits = ScheduleTraits;
constexpr RegistryEntry<ScheduleCurve, ScheduleTraits> kSchedules[] = {
    {"constant", "stays at optimizer.lr", constant},
    {"step", "multiplied by schedule.gamma every schedule.every_epochs", step,
     Traits{.every = EveryEpochs::kDrops}},
    {"multistep", "multiplied by schedule.gamma at each of schedule.milestones", multistep,
     Traits{.has_milestones = true}},
    {"exponential", "falls smoothly by schedule.gamma over schedule.every_epochs", exponential,
     Traits{.every = EveryEpochs::kScale}},
    {"cosine", "cosine decay from optimizer.lr to its share schedule.final_lr", cosine},
    {"cosine_restarts", "the same over schedule.every_epochs, then again", cosine_restarts,
     Traits{.every = EveryEpochs::kPeriod}},
    {"onecycle",
     "up to optimizer.lr from its share schedule.initial_lr, then down to schedule.final_lr",
     onecycle, Traits{.is_cycle = true}},
    {"linear", "linear decay from optimizer.lr to its share schedule.final_lr", linear},
    {"polynomial", "the same to the power schedule.power", polynomial},
    {"plateau", "multiplied by schedule.gamma when evaluations stop improving", constant,
     Traits{.needs_evaluations = true}},
};

// A length given in epochs must be at least one step, and a period may not shrink.
void require_whole_step(const ScheduleOptions& options, const ScheduleTraits& traits,
                        const CurvePoint& whole) {
  const auto refuse = [](const std::string& key, const std::string& remedy,
                         const std::string& problem = "is less than a step") {
    fail(ErrorKind::kUsage, "schedule." + key + " " + problem, "schedule." + key, remedy);
  };
  const std::string longer = "Make it longer, or train.batch smaller";
  if (traits.every == EveryEpochs::kScale && !(options.every_epochs > 0))
    refuse("every_epochs", "Give the epochs in which the rate falls by schedule.gamma",
           "is not above 0");
  if (traits.every == EveryEpochs::kPeriod && options.restart_mult < 1)
    refuse("restart_mult", "Set it to 1 or more", "is less than 1");
  const bool in_steps = traits.every == EveryEpochs::kDrops || traits.every == EveryEpochs::kPeriod;
  if (in_steps && to_steps(options.every_epochs, whole) < 1) refuse("every_epochs", longer);
  if (traits.has_milestones)
    for (double epochs : options.milestones)
      if (to_steps(epochs, whole) < 1) refuse("milestones", longer);
  if (!traits.is_cycle) return;
  const bool by_epoch = options.per == SchedulePer::kEpoch;
  if (options.rise * double(by_epoch ? in_epochs(whole).total : whole.total) > 1) return;
  if (by_epoch) refuse("rise", "Raise it, or train for more epochs", "is less than an epoch");
  refuse("rise", "Raise it, or train for more steps");
}

}  // namespace

std::span<const RegistryEntry<ScheduleCurve, ScheduleTraits>> schedules() {
  return kSchedules;
}

ScheduleTraits traits_of(const ScheduleOptions& options) {
  for (const auto& entry : schedules())
    if (entry.name == options.name) return entry.traits;
  return {};
}

Plateau::Plateau(const ScheduleOptions& options)
    : options_(options), minimizes_(options.metric == "loss") {
  forget_best();
}

void Plateau::minimize() {
  minimizes_ = true;
  forget_best();
}

void Plateau::forget_best() {
  const double worst = std::numeric_limits<double>::infinity();
  best_ = minimizes_ ? worst : -worst;
  bad_ = 0;
}

void Plateau::observe(double metric) {
  const bool better = minimizes_ ? metric < best_ * (1 - options_.threshold)
                                 : metric > best_ * (1 + options_.threshold);
  if (better) best_ = metric;
  bad_ = better ? 0 : bad_ + 1;
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ > options_.patience) {
    factor_ = std::max(factor_ * options_.gamma, options_.final_lr);
    cooldown_ = options_.cooldown;
    bad_ = 0;
  }
}

std::vector<double> Plateau::state() const {
  return {best_, double(bad_), double(cooldown_), factor_};
}

void Plateau::load_state(const std::vector<double>& state) {
  best_ = state.at(0);
  bad_ = int64_t(state.at(1));
  cooldown_ = int64_t(state.at(2));
  factor_ = state.at(3);
}

Schedule::Schedule(const ScheduleOptions& options, int64_t total, int64_t epoch)
    : options_(options),
      entry_(find_entry(schedules(), options.name, "schedule.name")),
      warmup_(std::llround(options.warmup_epochs * double(epoch))),
      total_(total),
      epoch_(epoch),
      plateau_(options) {
  require_whole_step(options_, entry_.traits, {0, std::max<int64_t>(1, total_ - warmup_), epoch_});
}

double Schedule::factor(int64_t step) const {
  const double reduced = listens() ? plateau_.factor() : 1;
  if (step < warmup_) return reduced * double(step + 1) / double(warmup_);
  return reduced * entry_.make(options_, after_warmup(step));
}

std::optional<double> Schedule::momentum(int64_t step) const {
  if (!entry_.traits.is_cycle || !options_.cycle_momentum) return std::nullopt;
  return cycle(options_, after_warmup(std::max(step, warmup_)), options_.momentum_high,
               options_.momentum_low, options_.momentum_high);
}

CurvePoint Schedule::after_warmup(int64_t step) const {
  const bool by_epoch = options_.per == SchedulePer::kEpoch;
  if (by_epoch) step = std::max(warmup_, step - step % epoch_);
  const CurvePoint at{step - warmup_, std::max<int64_t>(1, total_ - warmup_), epoch_};
  return by_epoch && entry_.traits.is_cycle ? in_epochs(at) : at;
}

void Schedule::observe(double loss, double metric) {
  if (listens()) plateau_.observe(options_.metric == "loss" ? loss : metric);
}

}  // namespace saturate
