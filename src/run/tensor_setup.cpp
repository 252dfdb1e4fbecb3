// Recipes for samples that are tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "data/elements.h"
#include "data/sources.h"
#include "recipe/option_row.h"
#include "run/setup.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// "y, float32 [3]".
std::string described(const TensorField& field) {
  return fmt::format(
      "{}, {} [{}]{}", field.name, element_name(field.type), fmt::join(field.shape, ", "),
      field.values > 0 && !field.shape.empty() ? fmt::format(" below {}", field.values) : "");
}

void refuse(bool is_set, const char* key, const std::string& problem, const std::string& remedy) {
  if (is_set) fail_option(key, problem, remedy, "data.source");
}

// Settings that would be ignored: all without a volume, and those that volumes do not have.
void refuse_augmentation(const Recipe& recipe, bool has_volume) {
  constexpr std::string_view kOfVolumes[] = {
      "augment.crop",     "augment.size",           "augment.flip",  "augment.rotate",
      "augment.shear",    "augment.translate",      "augment.zoom",  "augment.brightness",
      "augment.contrast", "augment.gaussian_noise", "augment.device"};
  const Recipe none;
  for (const OptionRow& row : option_table()) {
    if (has_volume && std::ranges::count(kOfVolumes, row.key) > 0) continue;
    refuse(row.key.starts_with("augment.") && row.get(recipe) != row.get(none), row.key.c_str(),
           has_volume ? "does not apply to volumes" : "is for images, and the source has tensors",
           "Remove it");
  }
  if (has_volume) check_volume_options(recipe.augment);
}

void refuse_image_settings(const Recipe& recipe, bool has_volume, bool varies) {
  const std::string images = "is for images, and the source has tensors";
  refuse_augmentation(recipe, has_volume);
  refuse(recipe.data.cache.mode == CacheMode::kDevice, "data.cache", "= device " + images,
         "Set data.cache=ram");
  refuse(recipe.data.decode_device == DecodeDevice::kCuda, "data.decode_device", "= cuda " + images,
         "Remove it");
  refuse(recipe.pipeline.augment && !has_volume, "pipeline.augment", images, "Remove it");
  refuse(recipe.train.eval_flip || recipe.train.eval_shift > 0, "train.tta", images, "Remove it");
  refuse(varies && !recipe.train.compiled.empty(), "train.compiled",
         "is made for one shape, and the samples vary in length", "Remove it");
}

// Tokens, of which the target is those that follow the input.
bool is_text(const std::vector<TensorField>& fields, const TensorField& target) {
  const TensorField input = input_of(fields);
  return target.values > 0 && target.shape.size() == 1 && input.values == target.values &&
         input.shape == target.shape && input.is_sequence == target.is_sequence;
}

TaskKind task_for(const std::vector<TensorField>& fields, const TensorField& target,
                  bool has_voxels, const std::string& source) {
  if (has_voxels) return TaskKind::kSegment;
  if (is_class(target)) return TaskKind::kClassify;
  if (is_text(fields, target)) return TaskKind::kLanguage;
  if (!is_whole(target.type)) return TaskKind::kRegress;
  fail(
      ErrorKind::kUsage, "the target is of whole numbers (" + described(target) + ")", source,
      "Set train.task=regress, or multilabel if they are 0 and 1. Classes are whole numbers from 0 "
      "to 65535, of shape [samples]; for a class for each voxel name the volume with "
      ",volume=NAME; for tokens give tokens:FILE,vocabulary=N or npz:FILE,vocabulary=N");
}

// Sets the number of outputs to the vocabulary, unless the recipe has a larger one.
void set_vocabulary(Recipe& recipe, const Dataset& data, const TensorField& target) {
  if (!is_text(data.tensors(), target))
    fail(ErrorKind::kUsage,
         "train.task is language, and the source has no tokens of a known vocabulary (it has " +
             tensors_text(data.tensors()) + ")",
         recipe.data.source, "Give tokens:FILE,vocabulary=N, or npz:FILE,vocabulary=N");
  if (recipe.model.classes == 0) recipe.model.classes = int(target.values);
  if (recipe.model.classes < target.values)
    fail(ErrorKind::kUsage,
         fmt::format("model.classes is {}, and the vocabulary has {} tokens", recipe.model.classes,
                     target.values),
         recipe.data.source, "Remove model.classes");
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

// Large arrays are not read to find their largest number.
void set_voxel_classes(Recipe& recipe, const TensorField& target) {
  int& classes = recipe.model.classes;
  if (classes == 0) classes = int(target.values);
  if (classes == 0)
    fail(ErrorKind::kUsage, "the number of classes is not known (" + described(target) + ")",
         recipe.data.source, "Set model.classes");
  if (classes >= int(target.values)) return;
  fail(ErrorKind::kUsage,
       fmt::format("model.classes is {}, but the voxels have {} classes", classes, target.values),
       recipe.data.source, "Remove model.classes to use the number in the data");
}

// Sequences of tokens may not be longer than a language model's context.
void require_context(const std::vector<TensorField>& fields, const std::vector<TensorField>& found,
                     const std::string& source) {
  const TensorField *const trained = target_of(fields), *const target = target_of(found);
  if (!trained || !trained->is_sequence || target->shape[0] <= trained->shape[0]) return;
  fail(ErrorKind::kUsage,
       fmt::format("samples have up to {} tokens, and those of the training data {}",
                   target->shape[0], trained->shape[0]),
       source,
       "Shorten them, or pad the array of the training data to that length, which is the model's "
       "context");
}

}  // namespace

void resolve_tensors(Recipe& recipe, const Dataset& data) {
  refuse_image_settings(recipe, std::ranges::any_of(data.tensors(), &TensorField::is_volume),
                        std::ranges::any_of(data.tensors(), &TensorField::is_sequence));
  const TensorField* const target = target_of(data.tensors());
  const std::string& source = recipe.data.source;
  if (!target)
    fail(ErrorKind::kUsage, "the source has no target to predict", source,
         "Name it with ,target=NAME, or for a language model the number of tokens with "
         ",vocabulary=N; a shard has the target of the source that was packed");
  TaskKind& task = recipe.train.task;
  const bool may_be_language = task == TaskKind::kAuto || task == TaskKind::kLanguage;
  if (target->is_sequence && !(may_be_language && is_text(data.tensors(), *target)))
    fail(ErrorKind::kUsage,
         "the target " + described(*target) + " is of varying length, which only tokens are",
         source,
         "Name the arrays that vary, without the target, with ,sequence=NAME+NAME. Tokens need "
         "train.task=language, and ,vocabulary=N in the source");
  const bool has_voxels = labelled_volume(data.tensors()) != nullptr;
  if (task == TaskKind::kAuto) task = task_for(data.tensors(), *target, has_voxels, source);
  if (task == TaskKind::kSegment && !has_voxels)
    fail(ErrorKind::kUsage,
         "the target is not a class for each voxel of a volume (" + described(*target) +
             "), and train.task is segment",
         source, "Name the volume with ,volume=NAME");
  if (task == TaskKind::kClassify && !is_class(*target))
    fail(ErrorKind::kUsage,
         "the target is not a class (" + described(*target) + "), and train.task is classify",
         source, "Set train.task=auto, or give a target that is a class");
  const bool has_classes = task == TaskKind::kClassify || task == TaskKind::kSegment;
  refuse(recipe.train.label_smoothing > 0 && !has_classes, "train.label_smoothing",
         "is for classes", "Set it to 0");
  refuse(recipe.train.loss != RegressionLoss::kMse && task != TaskKind::kRegress, "train.loss",
         "is for train.task=regress", "Remove it");
  const bool has_values = task == TaskKind::kRegress || task == TaskKind::kMultilabel;
  if (has_values && is_class(*target) && !are_numbered(data.classes()))
    fail(ErrorKind::kUsage, "the target is a class with a name, not a number", source,
         "Remove train.task, or ,classes=true");
  if (has_values) set_outputs(recipe, *target);
  if (task == TaskKind::kLanguage) set_vocabulary(recipe, data, *target);
  if (task == TaskKind::kSegment) set_voxel_classes(recipe, *target);
}

std::string tensors_text(const std::vector<TensorField>& fields) {
  std::string text;
  for (const TensorField& field : fields)
    text += (text.empty() ? "" : "; ") + described(field) + (field.is_target ? ", the target" : "");
  return text;
}

std::string shapes_text(const std::vector<TensorField>& fields) {
  const TensorField input = input_of(fields);
  TensorField target = *target_of(fields);
  if (labelled_volume(fields)) target.shape.resize(3);  // without channels
  const auto text = [](const TensorField& field) {
    return fmt::format("{} [{}]", is_integer(field.type) ? "int64" : "float32",
                       fmt::join(field.shape, ", "));
  };
  return fmt::format("samples: input {}, target {}{}", text(input), text(target),
                     input.is_sequence ? ", of varying length" : "");
}

void require_same_tensors(const std::vector<TensorField>& fields, const Dataset& data,
                          const AugmentOptions& augment, const std::string& source) {
  const std::vector<TensorField> found = batch_fields(data, augment);
  if (fields.empty() && !found.empty())
    fail(ErrorKind::kUsage, "the samples are tensors, and the training data are images", source,
         "Give a source of images");
  if (found.empty() && !fields.empty())
    fail(ErrorKind::kUsage, "the samples are images, and the training data are tensors", source,
         "Give a source of tensors");
  const bool has_voxels = labelled_volume(found) != nullptr;
  // A model may have more classes, also of voxels, than either source.
  const auto has_same_values = [&](const TensorField& a, const TensorField& b) {
    return (has_voxels && b.is_target) || a.shape.empty() || a.values == b.values;
  };
  // Sequences may be longer in one than in the other.
  const auto sizes = [](const TensorField& field) {
    return std::span(field.shape).subspan(field.is_sequence ? 1 : 0);
  };
  const auto is_alike = [&](const TensorField& a, const TensorField& b) {
    return a.is_sequence == b.is_sequence && std::ranges::equal(sizes(a), sizes(b)) &&
           a.is_target == b.is_target && a.is_volume == b.is_volume &&
           is_whole(a.type) == is_whole(b.type) && has_same_values(a, b);
  };
  if (std::ranges::equal(fields, found, is_alike)) return require_context(fields, found, source);
  fail(ErrorKind::kUsage,
       "the samples are " + tensors_text(found) + "; and those of the training data " +
           tensors_text(fields),
       source, "Give the same arrays or columns, in the same order");
}

}  // namespace saturate
