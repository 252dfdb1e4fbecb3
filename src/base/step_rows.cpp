// The option table's rows for the step: [model], [optimizer], [schedule], [precision]. Adding a
// key: a member in saturate/step_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md

#include "base/option_row.h"

namespace saturate {
namespace {

std::vector<OptionRow> model_rows() {
  return {
      text(SATURATE_OPTION(model.name), "`saturate list` prints the names."),
      integer(SATURATE_OPTION(model.classes), {0, 1 << 20}, "classes",
              "Outputs of the model; 0: the classes of the training source."),
      number(SATURATE_OPTION(model.width), {0, 16, true}, "times",
             "Multiplies the model's channels (a transformer's heads), to trade accuracy for "
             "speed."),
      number(SATURATE_OPTION(model.dropout), {0, 0.99}, "share",
             "mobilenet_v2: features left out at random before the last layer in training. A "
             "compiled step needs 0."),
      choice(SATURATE_OPTION(model.attention),
             std::vector<std::pair<std::string, Attention>>{{"sdpa", Attention::kSdpa},
                                                            {"naive", Attention::kNaive}},
             "vit_tiny, vit_b_16: torch's fused attention, or the formula written out, which keeps "
             "the matrix of all pairs of tokens."),
      text(SATURATE_OPTION(model.weights),
           "A file of trained weights to begin with, by name: safetensors, a checkpoint (its "
           "averaged weights where train.ema made some), or .pt as "
           "torch.save(model.state_dict(), FILE) writes it. The last layer begins anew where the "
           "file's has another number of classes. Empty: weights are drawn."),
      text(SATURATE_OPTION(model.weights_prefix),
           "What the names of model.weights begin with that are taken, such as \"backbone.\", or "
           "\"model_ema.\" of a .pt file with several sets of weights; the rest of the file is "
           "passed over. Empty: found, behind module., model. and _orig_mod."),
      text_list(SATURATE_OPTION(model.weights_match),
                "Patterns of the names of what is taken out of model.weights, such as "
                "\"encoder.*\"; the rest of the model begins anew. Empty: all of it."),
      text(SATURATE_OPTION(model.file),
           "torchscript: the file, as torch.jit.script(module).save(FILE) writes it."),
  };
}

std::vector<OptionRow> optimizer_rows() {
  return {
      text(SATURATE_OPTION(optimizer.name), "`saturate list` prints the names."),
      number(SATURATE_OPTION(optimizer.lr), {0, kMostFactor}, "",
             "Learning rate at the schedule's top."),
      number(SATURATE_OPTION(optimizer.momentum), {0, 1}, "", "sgd, lars, muon: momentum."),
      flag(SATURATE_OPTION(optimizer.nesterov), "sgd, lars, muon: Nesterov's momentum."),
      number(SATURATE_OPTION(optimizer.weight_decay), {0, kMostFactor}, "",
             "sgd, adam, lars: L2 penalty added to gradients; adamw, lamb, muon: decoupled decay."),
      flag(SATURATE_OPTION(optimizer.decay_norm_and_bias),
           "Decays BatchNorm's weights and biases too."),
      number(SATURATE_OPTION(optimizer.beta1), {0, 1}, "",
             "adam, adamw, lamb, muon: decay of the mean gradient."),
      number(SATURATE_OPTION(optimizer.beta2), {0, 1}, "",
             "adam, adamw, lamb, muon: decay of the mean square."),
      number(SATURATE_OPTION(optimizer.eps), {1e-37, 1}, "",
             "adam, adamw, lamb, lars, muon: added to the denominator."),
      number(SATURATE_OPTION(optimizer.trust), {0, kMostFactor, true}, "",
             "lars: a layer's step as a share of its weights' norm, at a learning rate of 1."),
      number(SATURATE_OPTION(optimizer.layer_decay), {0, 1, true}, "",
             "Factor on the learning rate from each layer to the one before it; the last layer has "
             "all of it. A layer is what shares a name up to its first number, a block of a "
             "residual network or a transformer; norms go with the layer before."),
      text_list(SATURATE_OPTION(optimizer.lr_factors),
                "Factors on the learning rate, each \"PATTERN=FACTOR\", for the parameters whose "
                "name matches: * stands for any text, ? for any character. The first that matches "
                "counts, on top of optimizer.layer_decay."),
      text_list(SATURATE_OPTION(optimizer.freeze),
                "Patterns of the names of parameters that stay as they are. BatchNorm's statistics "
                "are no parameters."),
      flag(SATURATE_OPTION(optimizer.freeze_statistics),
           "BatchNorms whose parameters are frozen use their running statistics in training too, "
           "and "
           "leave them as they are."),
      flag(SATURATE_OPTION(optimizer.fused),
           "sgd, adam, adamw, and muon's part of it: one kernel updates all parameters; false: "
           "one operator after another, parameter by parameter."),
      flag(SATURATE_OPTION(optimizer.set_to_none),
           "Drops gradients after a step; false: zeroes them in place, which keeps their memory."),
  };
}

std::vector<OptionRow> schedule_rows() {
  return {
      text(SATURATE_OPTION(schedule.name), "`saturate list` prints the names."),
      choice(SATURATE_OPTION(schedule.per),
             std::vector<std::pair<std::string, SchedulePer>>{{"step", SchedulePer::kStep},
                                                              {"epoch", SchedulePer::kEpoch}},
             "When the rate changes: with each step, or with each epoch, as a scheduler of torch's "
             "whose step() is called so often. The warm-up changes it with each step."),
      number(SATURATE_OPTION(schedule.warmup_epochs), {0, kInf}, "epochs",
             "Linear ramp from 0 at the start; the schedule begins after it."),
      number(SATURATE_OPTION(schedule.final_lr), {0, 1}, "share of lr",
             "Where cosine, cosine_restarts (each time), onecycle, linear and polynomial end, and "
             "the least of plateau."),
      number(SATURATE_OPTION(schedule.every_epochs), {0, kInf}, "epochs",
             "step, exponential: how long for one factor of schedule.gamma; cosine_restarts: the "
             "first period."),
      number_list(SATURATE_OPTION(schedule.milestones), {0, kInf, true}, "epochs",
                  "multistep: when the rate falls, counted from the end of the warm-up."),
      number(SATURATE_OPTION(schedule.gamma), {0, 1, true}, "",
             "step, multistep, exponential, plateau: the factor."),
      integer(SATURATE_OPTION(schedule.restart_mult), {1, 1 << 20}, "times",
              "cosine_restarts: length of a period over that of the one before."),
      number(SATURATE_OPTION(schedule.power), {0, kInf, true}, "", "polynomial: the power."),
      number(SATURATE_OPTION(schedule.rise), {0, 1, true}, "share of steps",
             "onecycle: how long the rate rises; of the epochs with schedule.per=epoch."),
      number(SATURATE_OPTION(schedule.initial_lr), {0, 1}, "share of lr",
             "onecycle: where it starts."),
      flag(SATURATE_OPTION(schedule.cycle_momentum),
           "onecycle: momentum (for the Adams beta1) falls while the rate rises, and rises while "
           "it falls, in place of optimizer.momentum or optimizer.beta1."),
      number(SATURATE_OPTION(schedule.momentum_low), {0, 1}, "",
             "onecycle: momentum at the top of the rate."),
      number(SATURATE_OPTION(schedule.momentum_high), {0, 1}, "",
             "onecycle: momentum at both ends."),
      choice(SATURATE_OPTION(schedule.metric),
             std::vector<std::pair<std::string, PlateauMetric>>{
                 {"loss", PlateauMetric::kLoss}, {"accuracy", PlateauMetric::kAccuracy}},
             "plateau: what of each evaluation has to improve."),
      integer(SATURATE_OPTION(schedule.patience), {0, 1 << 20}, "evaluations",
              "plateau: how many without improvement are let pass."),
      integer(SATURATE_OPTION(schedule.cooldown), {0, 1 << 20}, "evaluations",
              "plateau: how many after a fall do not count."),
      number(SATURATE_OPTION(schedule.threshold), {0, 1}, "share of best",
             "plateau: the least improvement."),
  };
}

std::vector<OptionRow> precision_rows() {
  return {
      choice(
          SATURATE_OPTION(precision.mode),
          std::vector<std::pair<std::string, PrecisionMode>>{{"fp32", PrecisionMode::kFp32},
                                                             {"tf32", PrecisionMode::kTf32},
                                                             {"bf16", PrecisionMode::kBf16},
                                                             {"fp16", PrecisionMode::kFp16},
                                                             {"bf16-o2", PrecisionMode::kBf16O2},
                                                             {"fp16-o2", PrecisionMode::kFp16O2},
                                                             {"fp16-o3", PrecisionMode::kFp16O3},
                                                             {"auto", PrecisionMode::kAuto},
                                                             {"default", PrecisionMode::kDefault}},
          "Arithmetic of forward and backward: tf32 rounds the factors of products on a GPU, and "
          "is fp32 on a CPU; bf16 and fp16 are autocast over fp32 weights, fp16 with a scaled "
          "loss; with -o2 the model's matrices and filters are stored so too, and the optimizer "
          "keeps fp32 copies; fp16-o3 has no such copies, and the optimizer's state too in fp16, "
          "for "
          "comparison: small updates are lost; auto takes bf16 where the hardware has it, fp32 "
          "elsewhere; default is bf16 on a GPU, fp32 on a CPU."),
      flag(SATURATE_OPTION(precision.tf32),
           "In all modes but fp32, which is exact: what is left of products of fp32 numbers may "
           "round its factors to TF32 on a GPU."),
      number(SATURATE_OPTION(precision.initial_scale), {1, 16777216}, "",
             "fp16: what the loss is multiplied by at first. It halves at a step whose loss or "
             "gradients overflow, which is left out; a run whose scale falls below 2^-14, or that "
             "leaves out eight steps in a row and a whole epoch, ends with an error."),
      integer(SATURATE_OPTION(precision.growth_interval), {1, 1 << 30}, "steps",
              "fp16: how many without overflow double the scale."),
  };
}

}  // namespace

std::vector<OptionRow> step_rows() {
  return concatenated({model_rows(), optimizer_rows(), schedule_rows(), precision_rows()});
}

}  // namespace saturate
