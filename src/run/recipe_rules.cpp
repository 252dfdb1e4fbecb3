// The checks of a recipe between keys of several sections.
#include "recipe/option_row.h"

namespace saturate {
namespace {

void validate_memory(const TrainOptions& train, const std::string& where) {
  const bool automatic = train.batch == kAutomatic;
  if (automatic && train.accumulate > 1)
    fail_option("train.accumulate", "is chosen by train.batch=auto",
                "Set train.batch=auto:IMAGES instead, or train.batch to a number", where);
  if (!automatic && train.effective_batch > 0)
    fail_option("train.batch", "is a number, and an effective batch is set as well",
                "Set train.batch=auto:IMAGES, or only train.batch, which train.accumulate divides",
                where);
  if (!automatic && train.accumulate > train.batch)
    fail_option("train.accumulate", "is above train.batch",
                "Give each micro-batch at least one image", where);
}

bool stores_narrow(PrecisionMode mode) {
  return mode == PrecisionMode::kBf16O2 || mode == PrecisionMode::kFp16O2 ||
         mode == PrecisionMode::kFp16O3;
}

void validate_compiled(const Recipe& recipe, const std::string& where) {
  if (stores_narrow(recipe.precision.mode))
    fail_option("train.compiled", "needs weights in fp32",
                "Set precision.mode to bf16 or fp16, or remove train.compiled", where);
  if (recipe.train.batch == kAutomatic)
    fail_option("train.compiled", "is made for one batch size, and train.batch is auto",
                "Give train.batch a number", where);
  if (recipe.train.checkpoint_segments != 0)
    fail_option("train.compiled", "keeps all activations, unlike train.checkpoint_segments",
                "Set one of the two", where);
  if (recipe.augment.mixup > 0 || recipe.augment.cutmix > 0)
    fail_option("train.compiled", "supports only one label per image",
                "Set augment.mixup and augment.cutmix to 0, or remove train.compiled", where);
  if (recipe.optimizer.freeze_statistics)
    fail_option("train.compiled",
                "updates all statistics, and optimizer.freeze_statistics freezes some",
                "Set one of the two", where);
  if (recipe.augment.output != PixelType::kFloat32)
    fail_option("train.compiled", "needs images in fp32", "Set augment.output=fp32", where);
  if (!recipe.augment.size_changes.empty())
    fail_option("train.compiled", "is made for one size, and augment.size changes it by epoch",
                "Give augment.size one size, or remove train.compiled", where);
  if (recipe.train.batch % recipe.train.accumulate != 0)
    fail_option("train.compiled", "needs micro-batches of equal size",
                "Make train.batch a multiple of train.accumulate", where);
}

void validate_held(const Recipe& recipe, const std::string& where) {
  if (recipe.data.cache.mode != CacheMode::kDevice) return;
  if (!recipe.augment.size_changes.empty())
    fail_option("data.cache", "= device keeps images of one size, and augment.size changes it",
                "Set data.cache=ram, or give augment.size one size", where);
  if (recipe.augment.crop != CropKind::kRandomResized) return;
  if (recipe.data.cache.form != CacheForm::kDecoded)
    fail_option("data.cache",
                "= device keeps images at augment.size, and augment.crop = random_resized cuts "
                "from the photographs",
                "Set data.cache=device:decoded, which keeps whole photographs there, "
                "data.cache=ram, or another augment.crop",
                where);
  if (recipe.data.decode == DecodeMode::kFast)
    fail_option("data.cache",
                "= device:decoded keeps whole images, which data.decode = fast never decodes",
                "Set data.decode=exact, or data.cache=ram", where);
}

void validate_segmentation(const Recipe& recipe, const std::string& where) {
  const AugmentOptions& augment = recipe.augment;
  if (augment.mixup > 0 || augment.cutmix > 0)
    fail_option(augment.mixup > 0 ? "augment.mixup" : "augment.cutmix",
                "mixes labels of images, and train.task=segment has one for each pixel",
                "Set it to 0", where);
  if (recipe.data.cache.mode == CacheMode::kDevice)
    fail_option("data.cache", "= device keeps only images, and train.task=segment needs masks",
                "Set data.cache=ram", where);
  if (recipe.train.eval_shift > 0)
    fail_option("train.tta", "averages the logits of shifted images",
                "Remove \"shift\" with train.task=segment", where);
}

void validate_task(const Recipe& recipe, const std::string& where) {
  const TrainOptions& train = recipe.train;
  if (train.task == TaskKind::kSegment) validate_segmentation(recipe, where);
  if (train.task == TaskKind::kClassify && train.monitor == "eval_iou")
    fail_option("train.monitor", "= eval_iou is for segmentation", "Set train.task=segment", where);
  if (train.task != TaskKind::kAuto && train.task != TaskKind::kRegress &&
      train.loss != RegressionLoss::kMse)
    fail_option("train.loss", "is for train.task=regress", "Remove it", where);
}

void validate_pipeline(const Recipe& recipe, const std::string& where) {
  const PipelineOptions& pipeline = recipe.pipeline;
  if (pipeline.check && pipeline.copy == Toggle::kOff && !pipeline.any())
    fail_option("debug.checks", "= streams has no stream to check",
                "Set pipeline.copy, pipeline.augment or pipeline.encoder", where);
  if (!pipeline.encoder) return;
  if (recipe.optimizer.freeze.empty())
    fail_option("pipeline.encoder", "needs a frozen encoder, and optimizer.freeze is empty",
                "Set optimizer.freeze=[\"encoder.*\"]", where);
  if (!recipe.optimizer.freeze_statistics)
    fail_option("pipeline.encoder",
                "runs ahead of training, which would update BatchNorm's statistics",
                "Set optimizer.freeze_statistics=true", where);
  if (recipe.train.checkpoint_segments != 0)
    fail_option("pipeline.encoder",
                "keeps the encoder's features, and train.checkpoint_segments drops them",
                "Set one of the two", where);
  if (!recipe.train.compiled.empty())
    fail_option("pipeline.encoder", "runs the model in two parts, and train.compiled in one",
                "Set one of the two", where);
}

}  // namespace

void validate_recipe(const Recipe& recipe, const std::string& where) {
  if (recipe.data.source.empty())
    fail_option("data.source", "is missing", "Say where the training images are, as folder:PATH",
                where);
  validate_optimizer(recipe.optimizer, where);
  if (recipe.train.ema >= 1)
    fail_option("train.ema", "must be below 1", "Set it to 0 for none, or to a value such as 0.999",
                where);
  if (recipe.train.ema > 0 && recipe.train.swa > 0)
    fail_option("train.swa", "cannot be combined with train.ema", "Set one of them to 0", where);
  if (recipe.train.lookahead >= 1)
    fail_option("train.lookahead", "must be below 1",
                "Set it to 0 for none, or to a value such as 0.5", where);
  const bool half = stores_narrow(recipe.precision.mode);
  for (const auto& [key, value] :
       {std::pair("train.ema", recipe.train.ema), std::pair("train.swa", recipe.train.swa),
        std::pair("train.lookahead", recipe.train.lookahead)})
    if (half && value > 0)
      fail_option(key, "cannot average weights that are stored in half precision",
                  std::string("Set precision.mode to bf16 or fp16, or ") + key + "=0", where);
  if (recipe.train.early_stop > 0 && recipe.data.eval_source.empty() &&
      !is_training_metric(recipe.train.monitor))
    fail_option("train.early_stop", "needs an evaluation, and there is no data.eval_source",
                "Give one, or set train.monitor=train_loss", where);
  if (recipe.train.early_stop > 0 && !is_training_metric(recipe.train.monitor) &&
      recipe.train.eval_every == 0 && recipe.train.eval_every_steps == 0)
    fail_option("train.early_stop",
                "needs evaluations during the run, and the only one is at the end",
                "Set train.eval_every", where);
  if (recipe.schedule.warmup_epochs >= recipe.train.epochs)
    fail_option("schedule.warmup_epochs", "is as long as the run or longer",
                "Make it less than train.epochs", where);
  validate_data(recipe.data, where);
  validate_model(recipe.model, where);
  validate_memory(recipe.train, where);
  if (recipe.precision.mode == PrecisionMode::kTf32 && !recipe.precision.tf32)
    fail_option("debug.off", "has tf32, and precision.mode is tf32",
                "Set precision.mode to fp32, or remove it from debug.off", where);
  if (!recipe.train.compiled.empty()) validate_compiled(recipe, where);
  validate_augment(recipe.augment, where);
  validate_held(recipe, where);
  validate_task(recipe, where);
  if (recipe.model.weights.empty())
    for (const auto& [key, given] :
         {std::pair("model.weights_match", !recipe.model.weights_match.empty()),
          std::pair("model.weights_prefix", !recipe.model.weights_prefix.empty())})
      if (given)
        fail_option(key, "has no effect without model.weights", "Name the file, or remove it",
                    where);
  validate_pipeline(recipe, where);
  validate_schedule(recipe, where);
  validate_distributed(recipe, where);
}

}  // namespace saturate
