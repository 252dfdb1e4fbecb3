// The option table's rows for the step: [optimizer], [schedule], [precision]. Adding a
// key: a member in saturate/step_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md

#include "recipe/compound_rows.h"

namespace saturate {
namespace {

constexpr Range kBelow1{0, 1, false, true};

std::vector<OptionRow> optimizer_rows() {
  return {
      text(SATURATE_OPTION(optimizer.name), "`saturate list` prints the names."),
      number(SATURATE_OPTION(optimizer.lr), {0, kMostFactor}, "", "Peak learning rate."),
      number(SATURATE_OPTION(optimizer.momentum), {0, 1}, "",
             "sgd, lars, rmsprop, muon: momentum."),
      flag(SATURATE_OPTION(optimizer.nesterov), "sgd, lars, muon: Nesterov momentum."),
      number(SATURATE_OPTION(optimizer.weight_decay), {0, kMostFactor}, "",
             "sgd, adam, lars, rmsprop: L2 penalty added to gradients; adamw, lamb, muon: "
             "decoupled decay."),
      flag(SATURATE_OPTION(optimizer.decay_norm_and_bias),
           "Applies weight decay to BatchNorm's weights and to biases too."),
      part_list("optimizer.betas",
                {part("beta1", SATURATE_MEMBER(optimizer.beta1), kBelow1),
                 part("beta2", SATURATE_MEMBER(optimizer.beta2), kBelow1)},
                2, "",
                "adam, adamw, lamb, muon: decay of the mean gradient and of the mean square; "
                "rmsprop: only the latter."),
      number(SATURATE_OPTION(optimizer.eps), {1e-37, 1}, "",
             "adam, adamw, lamb, lars, rmsprop, muon: added to the denominator."),
      number(SATURATE_OPTION(optimizer.trust), {0, kMostFactor, true}, "",
             "lars: a layer's step as a share of its weights' norm, at a learning rate of 1."),
      number(
          SATURATE_OPTION(optimizer.layer_decay), {0, 1, true}, "",
          "Factor on the learning rate from each layer to the one before it; the last layer has "
          "the full rate. A layer is the parameters that share a name up to its first number, such "
          "as a block of a residual network or transformer; norms belong to the layer before."),
      text_list(SATURATE_OPTION(optimizer.lr_factors),
                "Factors on the learning rate, each \"PATTERN=FACTOR\", for the parameters whose "
                "name matches: * matches any text, ? any character. The first match counts, on top "
                "of optimizer.layer_decay."),
      text_list(
          SATURATE_OPTION(optimizer.freeze),
          "Patterns of names of parameters to freeze. BatchNorm's statistics are not parameters."),
      flag(SATURATE_OPTION(optimizer.freeze_statistics),
           "BatchNorms with frozen parameters use their running statistics in training too, and do "
           "not update them."),
  };
}

OptionRow cycle_row() {
  OptionRow row = low_and_high(
      "schedule.cycle_momentum", part("low", SATURATE_MEMBER(schedule.momentum_low), {0, 1}),
      part("high", SATURATE_MEMBER(schedule.momentum_high), {0, 1}), "",
      "onecycle: momentum (beta1 for the Adam family) falls to the first while the rate "
      "rises and rises to the second while it falls, replacing optimizer.momentum or "
      "beta1 of optimizer.betas. false or []: off.");
  row.type = "list of numbers|false";
  row.set = [set = row.set](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const bool* flag = std::get_if<bool>(&value);  // true: the default, as runs of old saved it
    const auto* list = std::get_if<std::vector<double>>(&value);
    const ScheduleOptions defaults;
    recipe.schedule.cycle_momentum = flag ? *flag : !(list && list->empty());
    recipe.schedule.momentum_low = defaults.momentum_low;
    recipe.schedule.momentum_high = defaults.momentum_high;
    if (!flag && recipe.schedule.cycle_momentum) set(recipe, value, where);
  };
  row.get = [get = row.get](const Recipe& recipe) {
    return recipe.schedule.cycle_momentum ? get(recipe) : OptionValue(false);
  };
  return row;
}

std::vector<OptionRow> schedule_rows() {
  return {
      text(SATURATE_OPTION(schedule.name), "`saturate list` prints the names."),
      choice(SATURATE_OPTION(schedule.per),
             {{"step", SchedulePer::kStep}, {"epoch", SchedulePer::kEpoch}},
             "When the learning rate changes: each step, or each epoch, like a torch scheduler "
             "whose step() is called that often. The warm-up changes it each step."),
      number(SATURATE_OPTION(schedule.warmup_epochs), {0, kInf}, "epochs",
             "Linear ramp from 0 at the start; the schedule begins after it."),
      number(SATURATE_OPTION(schedule.final_lr), {0, 1}, "share of lr",
             "Final rate of cosine, cosine_restarts (each period), onecycle, linear and "
             "polynomial, and minimum of plateau."),
      number(SATURATE_OPTION(schedule.every_epochs), {0, kInf}, "epochs",
             "step, exponential: epochs per factor of schedule.gamma; cosine_restarts: length of "
             "the first period."),
      number_list(
          SATURATE_OPTION(schedule.milestones), {0, kInf, true}, "epochs",
          "multistep: epochs at which the rate drops, counted from the end of the warm-up."),
      number(SATURATE_OPTION(schedule.gamma), {0, 1, true}, "",
             "step, multistep, exponential, plateau: the factor."),
      integer(SATURATE_OPTION(schedule.restart_mult), {1, 1 << 20}, "times",
              "cosine_restarts: ratio of each period's length to the previous one's."),
      number(SATURATE_OPTION(schedule.power), {0, kInf, true}, "", "polynomial: the power."),
      number(
          SATURATE_OPTION(schedule.rise), {0, 1, true}, "share of steps",
          "onecycle: fraction of steps (epochs with schedule.per=epoch) in which the rate rises."),
      number(SATURATE_OPTION(schedule.initial_lr), {0, 1}, "share of lr",
             "onecycle: initial rate."),
      cycle_row(),
      text(SATURATE_OPTION(schedule.metric),
           "plateau: the evaluation metric that has to improve: loss, or one that the task names, "
           "as for train.monitor."),
      part_list("schedule.patience",
                {part("patience", SATURATE_MEMBER(schedule.patience), {0, 1 << 20}),
                 part("cooldown", SATURATE_MEMBER(schedule.cooldown), {0, 1 << 20})},
                1, "evaluations",
                "plateau: evaluations without improvement before the rate drops. The second number "
                "is how many evaluations are ignored after a drop (0)."),
      number(SATURATE_OPTION(schedule.threshold), {0, 1}, "share of best",
             "plateau: minimum relative improvement."),
  };
}

std::vector<OptionRow> precision_rows() {
  return {
      choice(
          SATURATE_OPTION(precision.mode),
          {{"fp32", PrecisionMode::kFp32},
           {"tf32", PrecisionMode::kTf32},
           {"bf16", PrecisionMode::kBf16},
           {"fp16", PrecisionMode::kFp16},
           {"bf16-o2", PrecisionMode::kBf16O2},
           {"fp16-o2", PrecisionMode::kFp16O2},
           {"fp16-o3", PrecisionMode::kFp16O3},
           {"auto", PrecisionMode::kAuto},
           {"default", PrecisionMode::kDefault}},
          "Arithmetic of forward and backward: tf32 rounds the inputs of matrix products on a GPU, "
          "and is fp32 on a CPU; bf16 and fp16 are autocast over fp32 weights, fp16 with loss "
          "scaling; -o2 also stores the model's matrices and filters in that type, with fp32 "
          "master weights in the optimizer; fp16-o3 has no master weights and stores the "
          "optimizer's state in fp16 too, for comparison: small updates are lost; auto is bf16 if "
          "the hardware has it, else fp32; default is auto on a GPU, fp32 on a CPU."),
      part_list(
          "precision.loss_scale",
          {part("initial", SATURATE_MEMBER(precision.initial_scale), {1, 16777216}),
           part("growth interval", SATURATE_MEMBER(precision.growth_interval), {1, 1 << 30})},
          1, "",
          "fp16: initial loss scale, and the steps without overflow before it doubles (2000). It "
          "halves at a step whose loss or gradients overflow, which is skipped; a run whose scale "
          "falls below 2^-14, or that skips eight steps in a row and a whole epoch, or all of its "
          "steps, ends with an error."),
  };
}

}  // namespace

std::vector<OptionRow> step_rows() {
  return concatenated({optimizer_rows(), schedule_rows(), precision_rows()});
}

}  // namespace saturate
