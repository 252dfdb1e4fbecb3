// The option table's rows for a run: [train], [pipeline], [checkpoint]. Adding a key: a member in
// saturate/recipe.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md

#include "recipe/compound_rows.h"

namespace saturate {
namespace {

// "eval_accuracy", "train_loss:max", "auto".
void set_monitor(Recipe& recipe, const OptionValue& value, const std::string& where) {
  constexpr const char* kKey = "train.monitor";
  const std::string* const given = std::get_if<std::string>(&value);
  const auto refuse = [&](const std::string& problem) {
    fail_option(kKey, problem, "Give auto, eval_NAME or train_NAME, with :min or :max after it",
                where);
  };
  if (!given) refuse("must be text");
  const size_t colon = given->find(':');
  const std::string name = given->substr(0, colon),
                    mode = colon == std::string::npos ? "" : given->substr(colon + 1);
  const bool is_named = (name.starts_with("eval_") && name.size() > 5) ||
                        (name.starts_with("train_") && name.size() > 6);
  if (!is_named && name != "auto") refuse("is not a metric: \"" + *given + "\"");
  if (colon != std::string::npos && mode != "min" && mode != "max")
    refuse("ends with neither :min nor :max: \"" + *given + "\"");
  recipe.train.monitor = name;
  recipe.train.monitor_mode = mode.empty()    ? MonitorMode::kAuto
                              : mode == "min" ? MonitorMode::kMin
                                              : MonitorMode::kMax;
}

OptionRow monitor_row() {
  OptionRow row;
  row.key = "train.monitor";
  row.type = "auto|eval_NAME|train_NAME[:min|:max]";
  row.doc =
      "The metric for the best weights and early stopping, of each evaluation or of each training "
      "epoch: loss, or one that the task names. classify: accuracy and, for more than five "
      "classes, accuracy5. segment: iou (mean intersection over union) and accuracy. regress: r2 "
      "and mae. multilabel: map (of evaluations) and f1. language: perplexity, bits_per_token (of "
      "a vocabulary of bytes bpb) and accuracy. auto: the first metric listed for the task (for "
      "segment, accuracy), of each evaluation. Lower is better for loss, mae, perplexity and bits, "
      "unless :max follows, as in \"eval_loss:max\".";
  row.is_text = true;
  row.set = set_monitor;
  row.get = [](const Recipe& recipe) {
    const MonitorMode mode = recipe.train.monitor_mode;
    return OptionValue(recipe.train.monitor + (mode == MonitorMode::kMin   ? ":min"
                                               : mode == MonitorMode::kMax ? ":max"
                                                                           : ""));
  };
  return row;
}

// "auto:1024" sets effective_batch too.
OptionRow batch_row() {
  const Range range{1, 1 << 20};
  OptionRow row = integer(
      SATURATE_OPTION(train.batch), range, "images",
      "Global batch size: images in one step over all processes. auto measures before the run how "
      "many fit in memory and uses that many; auto:1024 uses 1024, in micro-batches that fit.");
  row.type = "integer|auto[:IMAGES]";
  row.set = [=, key = row.key, set = row.set](Recipe& recipe, const OptionValue& value,
                                              const std::string& where) {
    recipe.train.effective_batch = 0;
    const std::string* text = std::get_if<std::string>(&value);
    if (!text) return set(recipe, value, where);
    recipe.train.batch = kAutomatic;
    if (*text == "auto") return;
    const auto images = parsed_number<int64_t>(text->starts_with("auto:") ? text->substr(5) : "");
    if (!images || !range.contains(double(*images)))
      fail_option(key, "must be an integer, auto or auto:IMAGES",
                  "Give auto, such as auto:1024, or " + range.text(), where);
    recipe.train.effective_batch = int(*images);
  };
  row.get = [get = row.get](const Recipe& recipe) {
    if (recipe.train.batch != kAutomatic) return get(recipe);
    const int images = recipe.train.effective_batch;
    return OptionValue(images > 0 ? fmt::format("auto:{}", images) : std::string("auto"));
  };
  return row;
}

// Long: a table, a row a key.
std::vector<OptionRow> train_rows() {
  return {
      integer(SATURATE_OPTION(seed), {0, 9007199254740992.0}, "",
              "Seed of all random numbers: weights, order, augmentation. The same seed results in "
              "the same losses for any number of loader threads."),
      choice(
          SATURATE_OPTION(train.task),
          {{"auto", TaskKind::kAuto},
           {"classify", TaskKind::kClassify},
           {"segment", TaskKind::kSegment},
           {"regress", TaskKind::kRegress},
           {"multilabel", TaskKind::kMultilabel},
           {"language", TaskKind::kLanguage}},
          "classify predicts one class per sample; segment one per pixel, with a source of "
          "masks (masks:, synth:masks=true) and a model for it (unet, toy_seg), or one per voxel, "
          "with labelled volumes (npy:...,volume=NAME, synth-volume:) and unet3d; regress numbers "
          "and multilabel any number of labels per sample, from tensors; language the token after "
          "each, from tokens:, npz:...,vocabulary=N and synth-text:, with a gpt model. auto: "
          "classify, but for tensors segment if the target is a class for each voxel, regress if "
          "it is of floats, and language for tokens."),
      choice(SATURATE_OPTION(train.loss),
             {{"mse", RegressionLoss::kMse},
              {"l1", RegressionLoss::kL1},
              {"huber", RegressionLoss::kHuber}},
             "regress: the loss of the differences between outputs and target: the mean of their "
             "squares; of their absolute values; or Huber's, which is half the square below 1, and "
             "the absolute value less a half above."),
      number(SATURATE_OPTION(train.epochs), {0, kInf, true}, "epochs",
             "Passes over the training source; a fraction ends within an epoch."),
      batch_row(),
      integer(SATURATE_OPTION(train.accumulate), {1, 1 << 20}, "micro-batches",
              "Micro-batches per batch, computed one after the other before the one optimizer "
              "step: less memory for the same gradient. BatchNorm sees the micro-batches."),
      integer_or_auto(SATURATE_OPTION(train.checkpoint_segments), {0, 1 << 20}, "segments",
                      "Gradient checkpointing: splits the model into this many segments and keeps "
                      "only their inputs; backward recomputes all but the last segment. auto: "
                      "square root of the number of stages; 0: off."),
      number(SATURATE_OPTION(train.memory_gb), {0, 1 << 20}, "GiB",
             "Memory limit for tensors on train.device; exceeding it is an error. 0: no limit."),
      number(SATURATE_OPTION(train.clip_norm), {0, kMostFactor}, "",
             "Clips gradients to this global norm. 0: no clipping."),
      integer(
          SATURATE_OPTION(train.eval_batch), {0, 1 << 20}, "images",
          "Images in one evaluation batch; 0: train.batch, or what fits at once if that is auto."),
      number(SATURATE_OPTION(train.label_smoothing), {0, 1}, "",
             "Share of the target probability spread evenly over all classes."),
      word_list(
          "train.tta",
          {Word("flip")
               .sets(SATURATE_MEMBER(train.eval_flip), true)
               .means("its mirror image, at twice the cost"),
           Word("shift")
               .takes("pixels", SATURATE_MEMBER(train.eval_shift), {1, 16})
               .means("two copies shifted by 1 to 16 pixels (up and left, down and right), which "
                      "together have equal weight, at three times the cost")},
          "Test-time augmentation: evaluation averages the logits of each image with those of "
          "changed copies, which is more accurate."),
      flag(SATURATE_OPTION(train.drop_last), "Drops an epoch's last batch if it is not full."),
      intervals("train.eval_every",
                {part("epochs", SATURATE_MEMBER(train.eval_every), {0, 1 << 20}),
                 part("steps", SATURATE_MEMBER(train.eval_every_steps), {0, 1 << 30})},
                "Time between evaluations: a number of epochs, a text such as \"500 steps\", or a "
                "list of both, [\"1 epoch\", \"500 steps\"]; 0: none before the end. The end of a "
                "run always evaluates."),
      number(SATURATE_OPTION(train.ema), {0, 1}, "decay",
             "Decay of an exponential moving average of the weights, such as 0.999; evaluation and "
             "`saturate eval` use the average. 0: off."),
      number(
          SATURATE_OPTION(train.swa), {0, 1}, "share",
          "Stochastic weight averaging: from this share of the run on, such as 0.75, the weights "
          "at the end of each epoch are averaged, with BatchNorm's statistics; evaluation and "
          "`saturate eval` use the average. Works best with schedule.name=constant. 0: off."),
      part_list(
          "train.lookahead",
          {part("share", SATURATE_MEMBER(train.lookahead), {0, 1}),
           part("steps", SATURATE_MEMBER(train.lookahead_every), {1, 1 << 20}),
           part("power", SATURATE_MEMBER(train.lookahead_power), {0, 16})},
          1, "",
          "Lookahead: after every 5 steps (the second number) slow weights move towards the "
          "trained weights, which are then reset to them. The first number is the share of the "
          "slow weights that is kept (1 minus the paper's alpha; 0: off). It is multiplied by the "
          "run's progress, from 0 to 1, to the power of the third number (0: constant)."),
      number(SATURATE_OPTION(train.max_minutes), {0, kInf}, "minutes",
             "Evaluates, saves and ends after this wall time of the process; 0: no limit."),
      monitor_row(),
      part_list("train.early_stop",
                {part("values", SATURATE_MEMBER(train.early_stop), {0, 1 << 20}),
                 part("min_delta", SATURATE_MEMBER(train.min_delta), {0, kInf})},
                1, "values",
                "Ends the run after this many consecutive values of train.monitor without "
                "improvement, or if it is not finite; 0: never. The second number is the minimum "
                "change that counts as an improvement (0), also for the best weights."),
      flag(SATURATE_OPTION(train.restore_best),
           "A run with train.early_stop ends with its best weights, not its last."),
      choice(SATURATE_OPTION(train.device), {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
             "Where the model runs; auto uses a GPU if one is available."),
      integer(SATURATE_OPTION(train.threads), {0, 1024}, "threads",
              "Intra-op threads on the CPU; 0: one per available core. Results may differ in the "
              "last bits between thread counts."),
      text(SATURATE_OPTION(train.compiled),
           "A step compiled ahead of time by tools/compile_step.py for this recipe, such as "
           "step.pt2, which replaces the model's forward and backward; empty: none."),
      choice(SATURATE_OPTION(train.graph), {{"off", GraphMode::kOff}, {"auto", GraphMode::kAuto}},
             "auto: captures a GPU's step, from augmentation to optimizer, as one CUDA graph after "
             "three steps and replays it from then on; if that is not possible, the run says why "
             "and uses the eager step. off: eager steps."),
  };
}

std::vector<OptionRow> pipeline_rows() {
  return {
      toggle(SATURATE_OPTION(pipeline.copy),
             "Copies batches to the device on a separate stream, overlapping earlier steps. auto: "
             "if the device is a GPU."),
      flag(SATURATE_OPTION(pipeline.augment),
           "Applies effects and normalisation on a separate stream of the training device, "
           "overlapping earlier steps; on the CPU on a separate thread instead of the loader's."),
      flag(SATURATE_OPTION(pipeline.encoder),
           "Computes a frozen encoder's features for the next batches on a separate stream, "
           "overlapping the decoder's training. Needs a model with an encoder (unet, toy_seg), "
           "optimizer.freeze=[\"encoder.*\"] and optimizer.freeze_statistics=true."),
  };
}

std::vector<OptionRow> checkpoint_rows() {
  return {
      intervals("checkpoint.every",
                {part("epochs", SATURATE_MEMBER(checkpoint.every), {0, 1 << 20}),
                 part("steps", SATURATE_MEMBER(checkpoint.every_steps), {0, 1 << 30}),
                 part("minutes", SATURATE_MEMBER(checkpoint.every_minutes), {0, kInf})},
                "Time between checkpoints: a number of epochs, a text such as \"500 steps\" or "
                "\"10 minutes\" (since the last one), or a list of them, [\"1 epoch\", \"10 "
                "minutes\"]; 0: none before the end. The end of a run, and Ctrl-C, always save."),
      integer(SATURATE_OPTION(checkpoint.keep), {1, 1 << 20}, "checkpoints",
              "How many of the newest checkpoints are kept."),
      flag(SATURATE_OPTION(checkpoint.keep_best),
           "Saves whenever train.monitor improves, and keeps that checkpoint too. Always on with "
           "train.early_stop and train.restore_best."),
  };
}

}  // namespace

std::vector<OptionRow> run_rows() {
  return concatenated({train_rows(), pipeline_rows(), checkpoint_rows()});
}

}  // namespace saturate
