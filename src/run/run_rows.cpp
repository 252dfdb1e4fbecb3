// The option table's rows for a run: [train], [pipeline], [checkpoint]. Adding a key: a member in
// saturate/recipe.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md

#include "recipe/option_row.h"

namespace saturate {
namespace {

// Long: a table, a row a key.
std::vector<OptionRow> train_rows() {
  return {
      integer(
          SATURATE_OPTION(seed), {0, 9007199254740992.0}, "",
          "Seed of everything random: weights, order, augmentation. The same seed gives the same "
          "losses for any number of loader threads."),
      choice(SATURATE_OPTION(train.task),
             std::vector<std::pair<std::string, TaskKind>>{{"classify", TaskKind::kClassify},
                                                           {"segment", TaskKind::kSegment}},
             "classify gives one class to an image; segment one to each pixel, with a source of "
             "masks (masks:, synth:masks=true) and a model for it (unet, toy_seg)."),
      number(SATURATE_OPTION(train.epochs), {0, kInf, true}, "epochs",
             "Passes over the training source; a fraction ends within an epoch."),
      integer_or_auto(SATURATE_OPTION(train.batch), {1, 1 << 20}, "images",
                      "Global batch size: images in one step over all processes. auto measures "
                      "before the run how many fit in memory and uses that many, or "
                      "train.effective_batch in micro-batches of that size."),
      integer(SATURATE_OPTION(train.effective_batch), {0, 1 << 20}, "images",
              "With train.batch=auto: images in one step, in as many micro-batches as needed; 0: "
              "as many as fit at once."),
      integer(SATURATE_OPTION(train.accumulate), {1, 1 << 20}, "parts",
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
      flag(
          SATURATE_OPTION(train.eval_flip),
          "Evaluation averages the logits of each image and of its mirror image: more accurate, at "
          "twice the cost."),
      integer(
          SATURATE_OPTION(train.eval_shift), {0, 16}, "pixels",
          "Evaluation averages each image's logits with those of two shifted copies (up and left, "
          "down and right), which together have equal weight: three times the cost; 0: off."),
      flag(SATURATE_OPTION(train.drop_last), "Drops an epoch's last batch if it is not full."),
      integer(SATURATE_OPTION(train.eval_every), {0, 1 << 20}, "epochs",
              "Epochs between evaluations; 0: not by epochs. The end of a run always evaluates."),
      integer(SATURATE_OPTION(train.eval_every_steps), {0, 1 << 30}, "steps",
              "Steps between additional evaluations; 0: not by steps."),
      number(SATURATE_OPTION(train.ema), {0, 1}, "decay",
             "Decay of an exponential moving average of the weights, such as 0.999; evaluation and "
             "`saturate eval` use the average. 0: off."),
      number(SATURATE_OPTION(train.lookahead), {0, 1}, "share",
             "Lookahead: slow weights follow the trained ones, which then restart from them; this "
             "share of the slow weights is kept each time (1 minus the paper's alpha). 0: off."),
      integer(SATURATE_OPTION(train.lookahead_every), {1, 1 << 20}, "steps",
              "Steps between updates of the slow weights."),
      number(SATURATE_OPTION(train.lookahead_power), {0, 16}, "",
             "train.lookahead grows from 0 with this power of the run's progress; 0: constant."),
      number(SATURATE_OPTION(train.max_minutes), {0, kInf}, "minutes",
             "Evaluates, saves and ends after this wall time of the process; 0: no limit."),
      choice(
          SATURATE_OPTION(train.monitor),
          std::vector<std::pair<std::string, Monitor>>{{"eval_accuracy", Monitor::kEvalAccuracy},
                                                       {"eval_accuracy5", Monitor::kEvalAccuracy5},
                                                       {"eval_loss", Monitor::kEvalLoss},
                                                       {"train_accuracy", Monitor::kTrainAccuracy},
                                                       {"train_loss", Monitor::kTrainLoss},
                                                       {"eval_iou", Monitor::kEvalIou}},
          "The metric for the best weights and early stopping: of each evaluation, or of each "
          "training epoch. eval_iou: mean intersection over union, with train.task=segment."),
      choice(
          SATURATE_OPTION(train.monitor_mode),
          std::vector<std::pair<std::string, MonitorMode>>{
              {"auto", MonitorMode::kAuto}, {"min", MonitorMode::kMin}, {"max", MonitorMode::kMax}},
          "Whether lower or higher is better; auto: lower for a loss, higher for accuracy or IoU."),
      integer(SATURATE_OPTION(train.early_stop), {0, 1 << 20}, "values",
              "Ends the run after this many consecutive values of train.monitor without "
              "improvement, or if it is not finite; 0: never."),
      number(SATURATE_OPTION(train.min_delta), {0, kInf}, "",
             "Minimum change that counts as an improvement."),
      flag(SATURATE_OPTION(train.restore_best),
           "A run with train.early_stop ends with its best weights, not its last."),
      choice(SATURATE_OPTION(train.device),
             std::vector<std::pair<std::string, std::string>>{
                 {"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
             "Where the model runs; auto uses a GPU if one is available."),
      integer(SATURATE_OPTION(train.threads), {0, 1024}, "threads",
              "Intra-op threads on the CPU; 0: one per available core. Results may differ in the "
              "last bits between thread counts."),
      flag(SATURATE_OPTION(train.channels_last),
           "Keeps images and weights in NHWC memory order, the fastest for convolutions."),
      flag(SATURATE_OPTION(train.cudnn_benchmark),
           "On a GPU, cuDNN times its algorithms for each new shape and keeps the fastest."),
      flag(SATURATE_OPTION(train.create_on_device),
           "Creates a step's temporary tensors on their device; false: on the host, then copies "
           "them."),
      flag(SATURATE_OPTION(train.keep_memory),
           "On the CPU, reuses freed memory for later tensors; false: large blocks are returned to "
           "the system, which clears and maps them again each time."),
      flag(SATURATE_OPTION(train.inference_mode),
           "Evaluates in torch's inference mode, which skips autograd bookkeeping; false: only "
           "without gradients."),
      flag(SATURATE_OPTION(train.late_metrics),
           "Reads loss and accuracy from the device only when a record is due; false: after each "
           "step, which waits for the device and detects a non-finite loss at once."),
      flag(SATURATE_OPTION(train.detect_anomaly),
           "torch's anomaly detection: an error names the operator whose gradient is NaN. Up to a "
           "hundred times slower for small models: LibTorch records a C++ stack trace for every "
           "operator, unlike Python."),
      text(SATURATE_OPTION(train.compiled),
           "A step compiled ahead of time by tools/compile_step.py for this recipe, such as "
           "step.pt2, which replaces the model's forward and backward; empty: none."),
      choice(SATURATE_OPTION(train.graph),
             std::vector<std::pair<std::string, GraphMode>>{{"off", GraphMode::kOff},
                                                            {"auto", GraphMode::kAuto}},
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
      flag(SATURATE_OPTION(pipeline.check),
           "Checks the streams' use of memory: a missing wait, a wrong record_stream or a copy "
           "from unpinned memory ends the run and names the line that caused it."),
  };
}

std::vector<OptionRow> checkpoint_rows() {
  return {
      integer(SATURATE_OPTION(checkpoint.every), {0, 1 << 20}, "epochs",
              "Epochs between checkpoints; 0: not by epochs. The end of a run, and Ctrl-C, always "
              "save."),
      integer(SATURATE_OPTION(checkpoint.every_steps), {0, 1 << 30}, "steps",
              "Steps between additional checkpoints; 0: not by steps."),
      number(SATURATE_OPTION(checkpoint.every_minutes), {0, kInf}, "minutes",
             "Saves when this time has passed since the last save; 0: not by time."),
      integer(SATURATE_OPTION(checkpoint.keep), {1, 1 << 20}, "checkpoints",
              "How many of the newest checkpoints are kept."),
      flag(SATURATE_OPTION(checkpoint.keep_best),
           "Saves whenever train.monitor improves, and keeps that checkpoint too."),
      flag(SATURATE_OPTION(checkpoint.background),
           "Writes a copy on a separate thread while training continues."),
  };
}

}  // namespace

std::vector<OptionRow> run_rows() {
  return concatenated({train_rows(), pipeline_rows(), checkpoint_rows()});
}

}  // namespace saturate
