// The one option table. Adding a key: a member in saturate/recipe.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md
#include <limits>

#include "base/option_row.h"

namespace saturate {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<OptionRow> run_rows() {
  return {
      integer(
          SATURATE_OPTION(seed), {0, 9007199254740992.0}, "",
          "Seed of everything random: weights, order, augmentation. The same seed gives the same "
          "losses for any number of loader threads."),
      number(SATURATE_OPTION(train.epochs), {0, kInf, true}, "epochs",
             "Passes over the training source; a fraction ends within an epoch."),
      integer(SATURATE_OPTION(train.batch), {1, 1 << 20}, "images", "Images in one step."),
      integer(SATURATE_OPTION(train.accumulate), {1, 1 << 20}, "parts",
              "Parts that a batch is computed in, one after the other, before the one optimizer "
              "step: less memory for the same gradient. BatchNorm sees the parts."),
      number(SATURATE_OPTION(train.clip_norm), {0, kInf}, "",
             "Largest norm of all gradients together; longer ones are scaled down. 0: any."),
      integer(SATURATE_OPTION(train.eval_batch), {0, 1 << 20}, "images",
              "Images in one evaluation batch; 0 takes train.batch."),
      number(SATURATE_OPTION(train.label_smoothing), {0, 1}, "",
             "Share of the target spread evenly over all classes."),
      flag(
          SATURATE_OPTION(train.eval_flip),
          "Evaluation averages the logits of each image and of its mirror image: more accurate, at "
          "twice the cost."),
      flag(SATURATE_OPTION(train.drop_last),
           "Leaves out an epoch's last batch where it is not full."),
      integer(SATURATE_OPTION(train.eval_every), {0, 1 << 20}, "epochs",
              "Evaluates after every so many epochs; 0: not by epochs. The end of a run always "
              "evaluates."),
      integer(SATURATE_OPTION(train.eval_every_steps), {0, 1 << 30}, "steps",
              "Evaluates after every so many steps too; 0: not by steps."),
      number(SATURATE_OPTION(train.ema), {0, 1}, "decay",
             "Keeps an exponential moving average of the weights, which evaluation and `saturate "
             "eval` then use, such as 0.999; 0: none."),
      number(SATURATE_OPTION(train.max_minutes), {0, kInf}, "minutes",
             "Evaluates, saves and ends after so much wall time of this process; 0: no limit."),
      choice(
          SATURATE_OPTION(train.monitor),
          std::vector<std::pair<std::string, Monitor>>{{"eval_accuracy", Monitor::kEvalAccuracy},
                                                       {"eval_accuracy5", Monitor::kEvalAccuracy5},
                                                       {"eval_loss", Monitor::kEvalLoss},
                                                       {"train_accuracy", Monitor::kTrainAccuracy},
                                                       {"train_loss", Monitor::kTrainLoss}},
          "The metric that says which weights are best, and when to stop early: of each "
          "evaluation, or of each epoch's training."),
      choice(
          SATURATE_OPTION(train.monitor_mode),
          std::vector<std::pair<std::string, MonitorMode>>{
              {"auto", MonitorMode::kAuto}, {"min", MonitorMode::kMin}, {"max", MonitorMode::kMax}},
          "Whether less or more of it is better; auto: less of a loss, more of an accuracy."),
      integer(
          SATURATE_OPTION(train.early_stop), {0, 1 << 20}, "values",
          "Ends the run after so many values of train.monitor in a row without a better one, or "
          "one that is not finite; 0: never."),
      number(SATURATE_OPTION(train.min_delta), {0, kInf}, "",
             "By how much a value must beat the best one to count as better."),
      flag(SATURATE_OPTION(train.restore_best),
           "A run with train.early_stop ends with its best weights, not its last."),
      choice(SATURATE_OPTION(train.device),
             std::vector<std::pair<std::string, std::string>>{
                 {"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
             "Where the model runs; auto takes a GPU where one can be used."),
      integer(
          SATURATE_OPTION(train.threads), {0, 1024}, "threads",
          "Threads inside one operator on the CPU; 0: one per available core. Results may differ "
          "in the last bits between numbers of threads."),
      flag(SATURATE_OPTION(train.channels_last),
           "Keeps images and weights in NHWC memory order, which convolutions run fastest in."),
  };
}

std::vector<OptionRow> data_rows() {
  return {
      text(SATURATE_OPTION(data.source),
           "Training images as SCHEME:REST; `saturate list` prints the schemes."),
      text(SATURATE_OPTION(data.eval_source),
           "Held-out images, with the same class names; empty: no evaluation."),
      integer(SATURATE_OPTION(data.threads), {0, 1024}, "threads",
              "Threads that read, decode and augment; 0: one per available core."),
      integer(SATURATE_OPTION(data.prefetch), {1, 1024}, "batches",
              "Batches being filled or waiting, at most."),
      choice(SATURATE_OPTION(data.decode),
             std::vector<std::pair<std::string, DecodeMode>>{{"exact", DecodeMode::kExact},
                                                             {"fast", DecodeMode::kFast}},
             "How images are decoded: exact gives Pillow's pixels; fast decodes only what the crop "
             "needs of a JPEG and resizes before it converts colours, typically 50 dB from "
             "exact."),
      choice(
          SATURATE_OPTION(data.on_error),
          std::vector<std::pair<std::string, OnError>>{{"fail", OnError::kFail},
                                                       {"skip", OnError::kSkip}},
          "What a broken image does: fail stops at the first and names it; skip counts, names and "
          "leaves out."),
      flag(SATURATE_OPTION(data.shuffle), "Draws a new order every epoch."),
  };
}

std::vector<OptionRow> augment_rows() {
  return {
      integer(SATURATE_OPTION(augment.size), {0, 4096}, "pixels",
              "Side of the square images the model gets; 0: the shorter side of the first training "
              "image."),
      choice(SATURATE_OPTION(augment.crop),
             std::vector<std::pair<std::string, CropKind>>{
                 {"none", CropKind::kNone},
                 {"center", CropKind::kCenter},
                 {"random_resized", CropKind::kRandomResized},
                 {"pad", CropKind::kPad}},
             "Training crop: none resizes the whole image; center as in evaluation; random_resized "
             "is RandomResizedCrop; pad shifts the image by up to augment.padding."),
      integer(SATURATE_OPTION(augment.padding), {0, 1024}, "pixels", "Border of crop = \"pad\"."),
      choice(SATURATE_OPTION(augment.pad_mode),
             std::vector<std::pair<std::string, PadMode>>{{"zero", PadMode::kZero},
                                                          {"reflect", PadMode::kReflect}},
             "What the border holds."),
      number(SATURATE_OPTION(augment.scale_min), {0, 1, true}, "share of area",
             "Smallest crop of random_resized."),
      number(SATURATE_OPTION(augment.scale_max), {0, 1, true}, "share of area",
             "Largest crop of random_resized."),
      number(SATURATE_OPTION(augment.ratio_min), {0, 100, true}, "width/height",
             "Narrowest crop of random_resized."),
      number(SATURATE_OPTION(augment.ratio_max), {0, 100, true}, "width/height",
             "Widest crop of random_resized."),
      number(SATURATE_OPTION(augment.flip), {0, 1}, "probability", "Horizontal flip in training."),
      number(SATURATE_OPTION(augment.eval_resize), {1, 10}, "times size",
             "Evaluation resizes the shorter side to this many times augment.size, then crops the "
             "centre; 1.143 is ImageNet's 256 for 224."),
      numbers(SATURATE_OPTION(augment.mean), 3, "Mean of red, green, blue, of values 0 to 1."),
      numbers(SATURATE_OPTION(augment.std), 3, "Standard deviation of the same."),
  };
}

std::vector<OptionRow> model_rows() {
  return {
      text(SATURATE_OPTION(model.name), "`saturate list` prints the names."),
      integer(SATURATE_OPTION(model.classes), {0, 1 << 20}, "classes",
              "Outputs of the model; 0: the classes of the training source."),
      number(SATURATE_OPTION(model.width), {0, 16, true}, "times",
             "Multiplies the channels of resnet9, to trade accuracy for speed."),
  };
}

std::vector<OptionRow> optimizer_rows() {
  return {
      text(SATURATE_OPTION(optimizer.name), "`saturate list` prints the names."),
      number(SATURATE_OPTION(optimizer.lr), {0, kInf}, "", "Learning rate at the schedule's top."),
      number(SATURATE_OPTION(optimizer.momentum), {0, 1}, "", "sgd, lars, muon: momentum."),
      flag(SATURATE_OPTION(optimizer.nesterov), "sgd, lars, muon: Nesterov's momentum."),
      number(SATURATE_OPTION(optimizer.weight_decay), {0, kInf}, "",
             "sgd, adam, lars: L2 penalty added to gradients; adamw, lamb, muon: decoupled decay."),
      flag(SATURATE_OPTION(optimizer.decay_norm_and_bias),
           "Decays BatchNorm's weights and biases too."),
      number(SATURATE_OPTION(optimizer.beta1), {0, 1}, "",
             "adam, adamw, lamb, muon: decay of the mean gradient."),
      number(SATURATE_OPTION(optimizer.beta2), {0, 1}, "",
             "adam, adamw, lamb, muon: decay of the mean square."),
      number(SATURATE_OPTION(optimizer.eps), {0, 1, true}, "",
             "adam, adamw, lamb, lars, muon: added to the denominator."),
      number(SATURATE_OPTION(optimizer.trust), {0, kInf, true}, "",
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
  };
}

std::vector<OptionRow> schedule_rows() {
  return {
      text(SATURATE_OPTION(schedule.name), "`saturate list` prints the names."),
      choice(SATURATE_OPTION(schedule.per),
             std::vector<std::pair<std::string, SchedulePer>>{{"step", SchedulePer::kStep},
                                                              {"epoch", SchedulePer::kEpoch}},
             "When the rate changes: with each step, or with each epoch. The warm-up changes it "
             "with each step."),
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
             "onecycle: how long the rate rises."),
      number(SATURATE_OPTION(schedule.initial_lr), {0, 1}, "share of lr",
             "onecycle: where it starts."),
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

std::vector<OptionRow> other_rows() {
  return {
      choice(
          SATURATE_OPTION(precision.mode),
          std::vector<std::pair<std::string, PrecisionMode>>{{"fp32", PrecisionMode::kFp32},
                                                             {"tf32", PrecisionMode::kTf32},
                                                             {"bf16", PrecisionMode::kBf16},
                                                             {"fp16", PrecisionMode::kFp16},
                                                             {"bf16-o2", PrecisionMode::kBf16O2},
                                                             {"fp16-o2", PrecisionMode::kFp16O2},
                                                             {"auto", PrecisionMode::kAuto}},
          "Arithmetic of forward and backward: tf32 rounds the factors of products on a GPU, and "
          "is fp32 on a CPU; bf16 and fp16 are autocast over fp32 weights, fp16 with a scaled "
          "loss; with -o2 the model's matrices and filters are stored so too, and the optimizer "
          "keeps fp32 copies; auto takes bf16 where the hardware has it, fp32 elsewhere."),
      number(SATURATE_OPTION(precision.initial_scale), {1, 16777216}, "",
             "fp16: what the loss is multiplied by at first. It halves at a step whose gradients "
             "overflow, which is left out."),
      integer(SATURATE_OPTION(precision.growth_interval), {1, 1 << 30}, "steps",
              "fp16: how many without overflow double the scale."),
      integer(SATURATE_OPTION(checkpoint.every), {0, 1 << 20}, "epochs",
              "Saves after every so many epochs; 0: not by epochs. The end of a run, and Ctrl-C, "
              "always save."),
      integer(SATURATE_OPTION(checkpoint.every_steps), {0, 1 << 30}, "steps",
              "Saves after every so many steps too; 0: not by steps."),
      number(SATURATE_OPTION(checkpoint.every_minutes), {0, kInf}, "minutes",
             "Saves when so much time has passed since the last save; 0: not by time."),
      integer(SATURATE_OPTION(checkpoint.keep), {1, 1 << 20}, "checkpoints",
              "How many of the newest are kept."),
      flag(SATURATE_OPTION(checkpoint.keep_best),
           "Saves whenever train.monitor is better than ever, and keeps that one too."),
      flag(SATURATE_OPTION(checkpoint.background),
           "Writes from a copy, on a thread of its own, while training goes on."),
      integer(SATURATE_OPTION(watch.every), {1, 1 << 20}, "steps",
              "Steps between two \"step\" lines of metrics.jsonl."),
      flag(SATURATE_OPTION(watch.progress), "Shows progress while running."),
  };
}

}  // namespace

const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> table = [] {
    std::vector<OptionRow> rows;
    for (auto part : {run_rows(), data_rows(), augment_rows(), model_rows(), optimizer_rows(),
                      schedule_rows(), other_rows()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return table;
}

void validate_recipe(const Recipe& recipe, const std::string& where) {
  const AugmentOptions& augment = recipe.augment;
  if (recipe.data.source.empty())
    fail_option("data.source", "is missing", "Say where the training images are, as folder:PATH",
                where);
  if (augment.scale_min > augment.scale_max)
    fail_option("augment.scale_min", "is above augment.scale_max", "Exchange them", where);
  if (augment.ratio_min > augment.ratio_max)
    fail_option("augment.ratio_min", "is above augment.ratio_max", "Exchange them", where);
  for (double deviation : augment.std)
    if (!(deviation > 0))
      fail_option("augment.std", "must be above 0", "Give the deviation of values 0 to 1", where);
  if (recipe.optimizer.nesterov && recipe.optimizer.momentum == 0 && recipe.optimizer.name == "sgd")
    fail_option("optimizer.nesterov", "needs a momentum",
                "Set optimizer.momentum, or optimizer.nesterov=false", where);
  if (recipe.train.ema >= 1)
    fail_option("train.ema", "must be below 1", "Give 0 for none, or such as 0.999", where);
  if (recipe.train.ema > 0 && (recipe.precision.mode == PrecisionMode::kBf16O2 ||
                               recipe.precision.mode == PrecisionMode::kFp16O2))
    fail_option("train.ema", "cannot average weights that are stored in half precision",
                "Set precision.mode to bf16 or fp16, or train.ema=0", where);
  if (recipe.train.early_stop > 0 && recipe.data.eval_source.empty() &&
      !is_training_metric(recipe.train.monitor))
    fail_option("train.early_stop", "watches an evaluation, and there is no data.eval_source",
                "Give one, or set train.monitor=train_loss", where);
  if (recipe.schedule.warmup_epochs >= recipe.train.epochs)
    fail_option("schedule.warmup_epochs", "leaves nothing after the warm-up",
                "Make it less than train.epochs", where);
  if (recipe.train.accumulate > recipe.train.batch)
    fail_option("train.accumulate", "is above train.batch", "Give each part an image at least",
                where);
  validate_schedule(recipe, where);
}

}  // namespace saturate
