// Recipes for samples that are tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/elements.h"
#include "recipe/option_row.h"
#include "run/setup.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// "y, float32 [3]".
std::string described(const TensorField& field) {
  return fmt::format("{}, {} [{}]", field.name, element_name(field.type),
                     fmt::join(field.shape, ", "));
}

void refuse(bool is_set, const char* key, const std::string& problem, const std::string& remedy) {
  if (is_set) fail_option(key, problem, remedy, "data.source");
}

// Nothing is augmented, so a setting that says so would be ignored.
void refuse_augmentation(const Recipe& recipe) {
  const Recipe none;
  for (const OptionRow& row : option_table())
    refuse(row.key.starts_with("augment.") && row.get(recipe) != row.get(none), row.key.c_str(),
           "is for images, and the source has tensors", "Remove it");
}

void refuse_image_settings(const Recipe& recipe) {
  const std::string images = "is for images, and the source has tensors";
  refuse_augmentation(recipe);
  refuse(recipe.data.cache.mode == CacheMode::kDevice, "data.cache", "= device " + images,
         "Set data.cache=ram");
  refuse(recipe.pipeline.augment, "pipeline.augment", images, "Remove it");
  refuse(recipe.train.eval_flip || recipe.train.eval_shift > 0, "train.tta", images, "Remove it");
  refuse(!recipe.train.compiled.empty(), "train.compiled", images, "Remove it");
}

TaskKind task_for(const TensorField& target, const std::string& source) {
  if (is_class(target)) return TaskKind::kClassify;
  if (!is_whole(target.type)) return TaskKind::kRegress;
  fail(ErrorKind::kUsage, "the target is of whole numbers (" + described(target) + ")", source,
       "Set train.task=multilabel if they are 0 and 1, or train.task=regress");
}

void set_outputs(Recipe& recipe, const TensorField& target) {
  const auto values = int(target.bytes() / bytes_of(target.type));
  if (recipe.model.classes == 0) recipe.model.classes = values;
  if (recipe.model.classes == values) return;
  fail(ErrorKind::kUsage,
       fmt::format("model.classes is {}, and the target has {} values ({})", recipe.model.classes,
                   values, described(target)),
       recipe.data.source, "Remove model.classes");
}

}  // namespace

void resolve_tensors(Recipe& recipe, const Dataset& data) {
  refuse_image_settings(recipe);
  const TensorField* const target = target_of(data.tensors());
  const std::string& source = recipe.data.source;
  if (!target)
    fail(ErrorKind::kUsage, "the source has no target to predict", source,
         "Name it with ,target=NAME");
  TaskKind& task = recipe.train.task;
  if (task == TaskKind::kAuto) task = task_for(*target, source);
  if (task == TaskKind::kClassify && !is_class(*target))
    fail(ErrorKind::kUsage,
         "the target is not a class (" + described(*target) + "), and train.task is classify",
         source, "Set train.task=auto, or give a target that is a class");
  refuse(recipe.train.label_smoothing > 0 && task != TaskKind::kClassify, "train.label_smoothing",
         "is for one class per sample", "Set it to 0");
  refuse(recipe.train.loss != RegressionLoss::kMse && task != TaskKind::kRegress, "train.loss",
         "is for train.task=regress", "Remove it");
  if (task == TaskKind::kRegress || task == TaskKind::kMultilabel) set_outputs(recipe, *target);
}

std::string tensors_text(const std::vector<TensorField>& fields) {
  std::string text;
  for (const TensorField& field : fields)
    text += (text.empty() ? "" : "; ") + described(field) + (field.is_target ? ", the target" : "");
  return text;
}

void require_same_tensors(const std::vector<TensorField>& fields, const Dataset& data,
                          const std::string& source) {
  const std::vector<TensorField>& found = data.tensors();
  if (fields.empty() && !found.empty())
    fail(ErrorKind::kUsage, "the samples are tensors, and the training data are images", source,
         "Give a source of images");
  if (found.empty() && !fields.empty())
    fail(ErrorKind::kUsage, "the samples are images, and the training data are tensors", source,
         "Give a source of tensors");
  const auto is_alike = [](const TensorField& a, const TensorField& b) {
    return a.shape == b.shape && a.is_target == b.is_target && is_whole(a.type) == is_whole(b.type);
  };
  if (std::ranges::equal(fields, found, is_alike)) return;
  fail(ErrorKind::kUsage,
       "the samples are " + tensors_text(found) + "; and those of the training data " +
           tensors_text(fields),
       source, "Give the same arrays or columns, in the same order");
}

}  // namespace saturate
