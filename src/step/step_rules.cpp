// The traits of optimizers, and the checks of [optimizer] and [schedule].
#include "recipe/option_row.h"
#include "step/optimizer_table.h"

namespace saturate {
namespace {

void require_milestones(const ScheduleOptions& schedule, double epochs, const std::string& where) {
  const auto& milestones = schedule.milestones;
  if (milestones.empty())
    fail_option("schedule.milestones", "is missing",
                "Give the epochs at which the rate drops, as [30, 60]", where);
  for (size_t i = 1; i < milestones.size(); ++i)
    if (milestones[i] <= milestones[i - 1])
      fail_option("schedule.milestones", "must rise", "Put them in order, each once", where);
  if (milestones.back() >= epochs)
    fail_option(
        "schedule.milestones",
        fmt::format("has {} when only {} epochs follow the warm-up", milestones.back(), epochs),
        "Remove it, or raise train.epochs", where);
}

// An optimizer without momentum has no momentum state.
void require_cycle(const Recipe& recipe, const std::string& where) {
  if (traits_of(recipe.optimizer).has_momentum && recipe.optimizer.momentum == 0)
    fail_option("schedule.cycle_momentum", "needs a momentum to cycle",
                "Set it to [], or optimizer.momentum above 0", where);
  const OptimizerTraits traits = traits_of(recipe.optimizer);
  if ((traits.is_adaptive || traits.averages_momentum) && recipe.schedule.momentum_high >= 1)
    fail_option("schedule.cycle_momentum", "is 1, and a mean with that weight never changes",
                "Set it below 1", where);
}

}  // namespace

OptimizerTraits traits_of(const OptimizerOptions& options) {
#define SATURATE_ROW(row, doc, ...) \
  if (options.name == #row) return {__VA_ARGS__};
  SATURATE_OPTIMIZERS(SATURATE_ROW)
#undef SATURATE_ROW
  return {};
}

void validate_optimizer(const OptimizerOptions& optimizer, const std::string& where) {
  if (optimizer.nesterov && optimizer.momentum == 0 && traits_of(optimizer).nesterov_needs_momentum)
    fail_option("optimizer.nesterov", "needs a momentum",
                "Set optimizer.momentum, or optimizer.nesterov=false", where);
  if (optimizer.momentum >= 1 && traits_of(optimizer).averages_momentum)
    fail_option("optimizer.momentum", "is 1, and a mean with that weight never changes",
                "Set it below 1", where);
}

void validate_schedule(const Recipe& recipe, const std::string& where) {
  const ScheduleOptions& schedule = recipe.schedule;
  const ScheduleTraits traits = traits_of(schedule);
  const double epochs = recipe.train.epochs - schedule.warmup_epochs, every = schedule.every_epochs;
  if (traits.every != EveryEpochs::kUnused && every == 0)
    fail_option("schedule.every_epochs", "is missing",
                "Give " + schedule.name + " its length in epochs", where);
  if ((traits.every == EveryEpochs::kDrops && every >= epochs) ||
      (traits.every == EveryEpochs::kPeriod && every > epochs))
    fail_option("schedule.every_epochs",
                fmt::format("is {} when only {} epochs follow the warm-up", every, epochs),
                "Lower it, or raise train.epochs", where);
  if (traits.has_milestones) require_milestones(schedule, epochs, where);
  if (traits.is_cycle && schedule.warmup_epochs > 0)
    fail_option("schedule.warmup_epochs",
                "does not combine with a schedule that starts with a rise",
                "Set it to 0: schedule.rise is " + schedule.name + "'s own warm-up", where);
  if (traits.is_cycle && schedule.rise == 1)
    fail_option("schedule.rise", "leaves nothing after the rise", "Make it less than 1", where);
  if (traits.is_cycle && schedule.cycle_momentum) require_cycle(recipe, where);
  if (traits.needs_evaluations && recipe.data.eval_source.empty())
    fail_option("schedule.name", "\"" + schedule.name + "\" needs evaluations",
                "Give data.eval_source, or another schedule", where);
  if (traits.needs_evaluations && recipe.train.eval_every == 0 &&
      recipe.train.eval_every_steps == 0)
    fail_option("train.eval_every",
                "is 0, and schedule \"" + schedule.name + "\" needs evaluations",
                "Make it 1 or more, or such as \"500 steps\"", where);
}

}  // namespace saturate
