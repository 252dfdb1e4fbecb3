#include "advise/source_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "advise/warm_source.h"
#include "base/text.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "saturate/data/loader.h"

namespace saturate {
namespace {

constexpr size_t kProbed = 64;  // images whose headers are read

// The sub-folder with the first of `names` that exists, in upper or lower case; else "".
std::string part_folder(const std::vector<FileInfo>& entries,
                        std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    for (const FileInfo& info : entries)
      if (info.is_directory && lower_case(info.name) == name) return info.name;
  return "";
}

// The last of the overrides of a key.
std::optional<std::string> override_of(std::span<const std::string> overrides,
                                       std::string_view key) {
  std::optional<std::string> value;
  for (const std::string& text : overrides)
    if (text.starts_with(key) && text.substr(key.size()).starts_with('='))
      value = text.substr(key.size() + 1);
  return value;
}

struct SourceParts {
  std::string train, eval;  // eval "": not given
};

SourceParts find_source_parts(Env& env, const std::string& source) {
  if (!env.is_directory(source) || scheme_of_source(env, source) != "folder") return {source, ""};
  if (env.exists(source + "/recipe.toml"))
    fail(ErrorKind::kUsage, "the folder is a run's, and holds no images", source,
         "Resume the run with --resume " + source + ", or start a new run with " + source +
             "/recipe.toml");
  const auto entries = env.list(source);
  const std::string train = part_folder(entries, {"train", "training"});
  if (train.empty()) return {source, ""};
  const std::string base = source.back() == '/' ? source : source + "/";
  const std::string eval = part_folder(entries, {"val", "valid", "validation", "eval", "test"});
  return {base + train, eval.empty() ? "" : base + eval};
}

// The median of the shorter sides of some images, evenly spread. Skips broken ones.
int median_side(const Dataset& data) {
  Decoder decoder;
  Sample sample;
  std::vector<int> sides;
  const auto samples = spread_samples(data.size(), kProbed);
  for (const size_t index : samples) try {
      data.read(index, sample);
      const ImageInfo info = probe_sample(decoder, sample);
      sides.push_back(std::min(info.width, info.height));
    } catch (const Error&) {
      if (index == samples.back() && sides.empty()) throw;
    }
  std::ranges::nth_element(sides, sides.begin() + std::ssize(sides) / 2);
  return sides[sides.size() / 2];
}

// N if one of N images is held out; 0: none.
size_t held_out(size_t images, size_t classes) {
  if (images < 2 * classes || images < 4) return 0;
  return images < 5'000 ? std::min<size_t>(5, images) : images < 100'000 ? 10 : 20;
}

using Settings = std::vector<std::string>;

template <class Value>
void add(Settings& settings, const char* key, const Value& value) {
  settings.push_back(fmt::format("{}={}", key, value));
}

// Small images as they are, photographs by crops.
void set_network(Settings& settings, int side, bool gpu, bool masks) {
  const bool small = side < 48 && !masks;
  const int size = small ? std::max(16, side) : side < 96 ? 64 : side < 160 ? 96 : gpu ? 224 : 128;
  add(settings, "augment.size", size);
  if (small) {
    add(settings, "augment.crop", fmt::format("pad_reflect:{}", std::max(1, size / 10)));
  } else {
    add(settings, "data.decode", "fast");
    add(settings, "augment.crop", "random_resized");
    add(settings, "augment.scale", "[0.25, 1]");
    add(settings, "augment.eval_resize", 1.143);
  }
  add(settings, "model.name", masks ? "unet" : small ? "resnet9" : "resnet18");
  if (!gpu && (small || masks)) add(settings, "model.width", masks ? 0.25 : 0.5);
}

void set_optimizer(Settings& settings, size_t batch, bool adaptive) {
  const auto set_rate = [&](double for_128) {
    add(settings, "optimizer.lr", fmt::format("{:.4g}", for_128 * double(batch) / 128));
  };
  add(settings, "optimizer.name", adaptive ? "adamw" : "sgd");
  set_rate(adaptive ? 0.003 : 0.1);
  if (!adaptive) add(settings, "optimizer.momentum", 0.9);
  if (!adaptive) add(settings, "optimizer.nesterov", "true");
  add(settings, "optimizer.weight_decay", adaptive ? 0.01 : 5e-4);
}

// Enough epochs for some hundred thousand images, on a CPU for fewer.
int epochs_for(size_t images, bool gpu) {
  const double seen = gpu ? 500'000 : 100'000;
  return int(std::clamp(std::round(seen / double(images)), gpu ? 15.0 : 5.0, 100.0));
}

// So that an epoch has some steps, and a step no fewer images than BatchNorm needs.
size_t batch_for(size_t images) {
  return std::bit_floor(std::min({std::max<size_t>(8, images / 16), images, size_t{128}}));
}

void set_length(Settings& settings, int made, std::span<const std::string> overrides) {
  const auto asked = override_of(overrides, "train.epochs");
  const double epochs = asked ? std::strtod(asked->c_str(), nullptr) : made;
  add(settings, "schedule.name", "cosine");
  add(settings, "schedule.warmup_epochs", std::min(5.0, epochs / 10));
  add(settings, "precision.mode", "auto");
  add(settings, "train.epochs", made);
  add(settings, "train.eval_every", std::max(1, made / 20));
  add(settings, "checkpoint.every", std::max(1, made / 20));
}

// `every`: as held_out(), if the source has no part for evaluation.
void set_sources(Settings& settings, const SourceParts& parts, size_t every) {
  if (every > 0) {
    add(settings, "data.source", fmt::format("split:train,1/{},{}", every, parts.train));
    add(settings, "data.eval_source", fmt::format("split:held,1/{},{}", every, parts.train));
  } else {
    add(settings, "data.source", parts.train);
    add(settings, "data.eval_source", parts.eval);
  }
  add(settings, "data.on_error", "skip");
}

// The network for tensors, other than volumes with labels.
std::string tensor_network(std::span<const TensorField> fields, bool on_gpu) {
  const auto is_tokens = [](const TensorField& field) {
    return field.is_target && field.values > 0 && field.shape.size() == 1;
  };
  if (std::ranges::any_of(fields, is_tokens)) return on_gpu ? "gpt_mini" : "gpt_tiny";
  return std::ranges::any_of(fields, &TensorField::is_sequence) ? "resnet18_1d" : "mlp";
}

}  // namespace

bool names_source(Env& env, const std::string& text) {
  if (text.ends_with(".toml")) return false;
  const std::string scheme = text.substr(0, text.find(':'));
  const auto is_known = [&](const auto& entry) { return entry.name == scheme; };
  if (text.find("://") != text.npos ||
      (scheme != text && std::ranges::any_of(dataset_sources(), is_known)))
    return true;
  const std::string path = env.exists(text) ? text : text.substr(0, text.find(','));
  // Also files that are missing, and patterns.
  constexpr std::string_view kEndings[] = {".tar", ".tgz", ".shard", ".npy",
                                           ".npz", ".csv", ".tsv",   ".safetensors"};
  const auto is_ending = [&](std::string_view ending) { return path.ends_with(ending); };
  if (env.is_directory(path) || std::ranges::any_of(kEndings, is_ending)) return true;
  std::error_code none;
  return std::filesystem::is_regular_file(path, none) && !scheme_of_path(env, path).empty();
}

std::vector<std::string> settings_for_source(Env& env, const std::string& source, bool gpu,
                                             std::span<const std::string> overrides) {
  const SourceParts parts = find_source_parts(env, source);
  const auto data = open_dataset(env, parts.train);
  const bool tensors = !data->tensors().empty();
  if (!tensors && data->classes().size() < 2)
    fail(ErrorKind::kData, "all images have the same class", parts.train,
         "Put the images of each class in a separate folder");
  const bool has_eval = !parts.eval.empty() || override_of(overrides, "data.eval_source");
  const std::string task = override_of(overrides, "train.task").value_or("auto");
  const auto is_task = [&](std::string_view name) { return task == "auto" || task == name; };
  const bool has_classes = !data->classes().empty() && (is_task("classify") || is_task("segment"));
  const size_t every =
      has_eval ? 0 : held_out(data->size(), has_classes ? data->classes().size() : 1);
  const size_t images = every == 0 ? data->size() : data->size() - data->size() / every - 1;
  const size_t batch = batch_for(images);
  const bool voxels = labelled_volume(data->tensors()) != nullptr;
  const bool masks = data->has_masks() || voxels;
  const bool on_gpu = gpu && override_of(overrides, "train.device") != "cpu";
  Settings settings;
  add(settings, "seed", 1);
  set_sources(settings, parts, every);
  if (voxels)
    add(settings, "model.name", "unet3d");
  else if (tensors)
    add(settings, "model.name", tensor_network(data->tensors(), on_gpu));
  else
    set_network(settings, median_side(*data), on_gpu, masks);
  // Tables are often small: a lower rate for their small batches would need more epochs.
  set_optimizer(settings, tensors ? 128 : batch, masks || tensors);
  set_length(settings, epochs_for(images, on_gpu), overrides);
  add(settings, "train.batch", batch);
  add(settings, "train.drop_last", "true");
  if (masks && is_task("segment")) {
    add(settings, "train.task", "segment");
    add(settings, "train.monitor", "eval_iou");
  } else if (has_classes && is_task("classify")) {
    add(settings, "train.label_smoothing", 0.1);
  }
  return settings;
}

}  // namespace saturate
