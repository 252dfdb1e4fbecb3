// The option table's rows for a run: [train], [pipeline], [checkpoint]. Adding a key: a member in
// saturate/recipe.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md

#include "base/option_row.h"

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
             std::vector<std::pair<std::string, Task>>{{"classify", Task::kClassify},
                                                       {"segment", Task::kSegment}},
             "classify gives one class to an image; segment one to each pixel, with a source of "
             "masks (masks:, synth:masks=true) and a model for it (unet, toy_seg)."),
      number(SATURATE_OPTION(train.epochs), {0, kInf, true}, "epochs",
             "Passes over the training source; a fraction ends within an epoch."),
      integer_or_auto(SATURATE_OPTION(train.batch), {1, 1 << 20}, "images",
                      "Images in one step, of all processes together. auto tries, before the run, "
                      "how many fit in memory at "
                      "once, and takes so many, or train.effective_batch in parts of so many."),
      integer(SATURATE_OPTION(train.effective_batch), {0, 1 << 20}, "images",
              "With train.batch=auto: images in one step, however many parts it takes; 0: as many "
              "as fit at once."),
      integer(SATURATE_OPTION(train.accumulate), {1, 1 << 20}, "parts",
              "Parts that a batch is computed in, one after the other, before the one optimizer "
              "step: less memory for the same gradient. BatchNorm sees the parts."),
      integer_or_auto(
          SATURATE_OPTION(train.checkpoint_segments), {0, 1 << 20}, "segments",
          "Gradient checkpointing: of so many segments of the model only the inputs are "
          "kept for backward, which computes the rest again, but the last one's. auto: "
          "the root of the model's number of stages; 0: everything is kept."),
      number(SATURATE_OPTION(train.memory_gb), {0, 1 << 20}, "GiB",
             "Memory for tensors on train.device, more than which is an error; 0: all there is."),
      number(SATURATE_OPTION(train.clip_norm), {0, kMostFactor}, "",
             "Largest norm of all gradients together; longer ones are scaled down. 0: any."),
      integer(
          SATURATE_OPTION(train.eval_batch), {0, 1 << 20}, "images",
          "Images in one evaluation batch; 0 takes train.batch, or what fits at once where that is "
          "auto."),
      number(SATURATE_OPTION(train.label_smoothing), {0, 1}, "",
             "Share of the target spread evenly over all classes."),
      flag(
          SATURATE_OPTION(train.eval_flip),
          "Evaluation averages the logits of each image and of its mirror image: more accurate, at "
          "twice the cost."),
      integer(SATURATE_OPTION(train.eval_shift), {0, 16}, "pixels",
              "Evaluation averages each image's logits with those of two copies, moved so far up "
              "and left, and down and right, which together weigh as much: three times the cost; "
              "0: none."),
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
      number(SATURATE_OPTION(train.lookahead), {0, 1}, "share",
             "Lookahead: slow weights follow the trained ones, which go on from there; of the slow "
             "ones this share stays each time (the paper's alpha is the rest). 0: none."),
      integer(SATURATE_OPTION(train.lookahead_every), {1, 1 << 20}, "steps",
              "How often, with train.lookahead."),
      number(
          SATURATE_OPTION(train.lookahead_power), {0, 16}, "",
          "train.lookahead grows from 0 with this power of the run's progress; 0: it is the same "
          "throughout."),
      number(SATURATE_OPTION(train.max_minutes), {0, kInf}, "minutes",
             "Evaluates, saves and ends after so much wall time of this process; 0: no limit."),
      choice(
          SATURATE_OPTION(train.monitor),
          std::vector<std::pair<std::string, Monitor>>{{"eval_accuracy", Monitor::kEvalAccuracy},
                                                       {"eval_accuracy5", Monitor::kEvalAccuracy5},
                                                       {"eval_loss", Monitor::kEvalLoss},
                                                       {"train_accuracy", Monitor::kTrainAccuracy},
                                                       {"train_loss", Monitor::kTrainLoss},
                                                       {"eval_iou", Monitor::kEvalIou}},
          "The metric that says which weights are best, and when to stop early: of each "
          "evaluation, or of each epoch's training. eval_iou: the mean over classes of "
          "intersection "
          "over union, of train.task=segment."),
      choice(
          SATURATE_OPTION(train.monitor_mode),
          std::vector<std::pair<std::string, MonitorMode>>{
              {"auto", MonitorMode::kAuto}, {"min", MonitorMode::kMin}, {"max", MonitorMode::kMax}},
          "Whether less or more of it is better; auto: less of a loss, more of an accuracy or an "
          "overlap."),
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
      flag(SATURATE_OPTION(train.cudnn_benchmark),
           "On a GPU cuDNN times its algorithms for each new shape, and keeps the fastest."),
      flag(
          SATURATE_OPTION(train.create_on_device),
          "Makes the tensors that a step needs where they are used; false: on the host, and copies "
          "them."),
      flag(
          SATURATE_OPTION(train.keep_memory),
          "On the CPU, memory that a step gives back waits in the process for the next one; false: "
          "large blocks go back to the system, which clears and maps them anew each time."),
      flag(SATURATE_OPTION(train.inference_mode),
           "Evaluates in torch's inference mode, which keeps no record of tensors at all; false: "
           "without gradients only."),
      flag(SATURATE_OPTION(train.late_metrics),
           "Reads loss and accuracy from the device only where a record is due; false: after each "
           "step, which waits for the device, and finds a loss that is not finite at once."),
      flag(SATURATE_OPTION(train.detect_anomaly),
           "torch's anomaly detection: an error names the operator whose gradient is not a number. "
           "Slow, small models up to a hundred times: LibTorch looks up a C++ stack for every "
           "operator, which Python does not."),
      text(SATURATE_OPTION(train.compiled),
           "A step compiled ahead of time by tools/compile_step.py for this recipe, such as "
           "step.pt2, which runs instead of the model's own forward and backward; empty: none."),
      choice(SATURATE_OPTION(train.graph),
             std::vector<std::pair<std::string, GraphMode>>{{"off", GraphMode::kOff},
                                                            {"auto", GraphMode::kAuto}},
             "auto: a GPU's step, from augmentation to optimizer, is recorded as one CUDA graph "
             "after three steps and launched as a whole from then on; where that cannot be, the "
             "run says why and goes on without. off: operator by operator."),
  };
}

std::vector<OptionRow> pipeline_rows() {
  return {
      toggle(
          SATURATE_OPTION(pipeline.copy),
          "Batches are copied to the device on a stream of their own, while the step is on those "
          "before. auto: where the device is a GPU."),
      flag(SATURATE_OPTION(pipeline.augment),
           "Effects and normalisation are done on a stream of their own, on the device that "
           "trains, while "
           "the step is on the batches before; on the CPU by a thread in place of the loader's."),
      flag(SATURATE_OPTION(pipeline.encoder),
           "A frozen encoder computes the next batches' features on a stream of its own, while the "
           "decoder "
           "trains on those before. Needs a model with an encoder (unet, toy_seg), "
           "optimizer.freeze=[\"encoder.*\"] and optimizer.freeze_statistics=true."),
      flag(SATURATE_OPTION(pipeline.check),
           "Watches the streams' use of memory: a missing wait, a wrong record_stream or a copy "
           "from "
           "memory that is not pinned ends the run, with the line that made it."),
  };
}

std::vector<OptionRow> checkpoint_rows() {
  return {
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
  };
}

}  // namespace

std::vector<OptionRow> run_rows() {
  return concatenated({train_rows(), pipeline_rows(), checkpoint_rows()});
}

}  // namespace saturate
