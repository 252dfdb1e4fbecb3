// Checks that span several keys of [schedule].
#include "recipe/option_row.h"

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
        "Leave it out, or raise train.epochs", where);
}

// An optimizer without momentum has no momentum state.
void require_cycle(const Recipe& recipe, const std::string& where) {
  const std::string& optimizer = recipe.optimizer.name;
  const bool by_momentum = optimizer == "sgd" || optimizer == "lars" || optimizer == "muon";
  if (by_momentum && recipe.optimizer.momentum == 0)
    fail_option("schedule.cycle_momentum", "needs a momentum to cycle",
                "Set it to false, or optimizer.momentum above 0", where);
}

}  // namespace

void validate_schedule(const Recipe& recipe, const std::string& where) {
  const ScheduleOptions& schedule = recipe.schedule;
  const std::string& name = schedule.name;
  const double epochs = recipe.train.epochs - schedule.warmup_epochs;
  const bool jumps = name == "step", restarts = name == "cosine_restarts";
  if ((jumps || restarts || name == "exponential") && schedule.every_epochs == 0)
    fail_option("schedule.every_epochs", "is missing", "Give " + name + " its length in epochs",
                where);
  if ((jumps && schedule.every_epochs >= epochs) || (restarts && schedule.every_epochs > epochs))
    fail_option(
        "schedule.every_epochs",
        fmt::format("is {} when only {} epochs follow the warm-up", schedule.every_epochs, epochs),
        "Lower it, or raise train.epochs", where);
  if (name == "multistep") require_milestones(schedule, epochs, where);
  if (name == "onecycle" && schedule.warmup_epochs > 0)
    fail_option("schedule.warmup_epochs",
                "does not combine with a schedule that starts with a rise",
                "Set it to 0: schedule.rise is onecycle's own warm-up", where);
  if (name == "onecycle" && schedule.rise == 1)
    fail_option("schedule.rise", "leaves nothing after the rise", "Make it less than 1", where);
  if (name == "onecycle" && schedule.cycle_momentum) require_cycle(recipe, where);
  if (name == "plateau" && recipe.data.eval_source.empty())
    fail_option("schedule.name", "\"plateau\" needs evaluations",
                "Give data.eval_source, or another schedule", where);
  if (name == "plateau" && recipe.train.eval_every == 0 && recipe.train.eval_every_steps == 0)
    fail_option("train.eval_every", "is 0, and schedule \"plateau\" needs evaluations",
                "Make it 1 or more, or such as \"500 steps\"", where);
}

}  // namespace saturate
