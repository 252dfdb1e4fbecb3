#include "run/training_parts.h"

#include <ATen/Context.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "record/metrics.h"
#include "reduce/data_parallel.h"
#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "step/precision.h"

namespace saturate {
namespace {

// The path of a BatchNorm that SyncBatchNorm cannot use; empty: none.
std::string unsynced_norm(Model& model, const ModelFacets& facets) {
  constexpr std::string_view kStatistic = ".running_mean";
  if (!facets.norm_without_hook.empty() || !facets.norms.empty()) return facets.norm_without_hook;
  for (const auto& [name, buffer] : model.buffers())
    if (name.ends_with(kStatistic)) return name.substr(0, name.size() - kStatistic.size());
  return "";
}

void require_fitting(Model& made, const ModelFacets& model, const Recipe& recipe) {
  const bool segments = recipe.train.task == TaskKind::kSegment;
  if (segments && !model.per_pixel)
    fail(ErrorKind::kUsage,
         recipe.model.name + " has no output for each pixel, and train.task is segment",
         "model.name", "Choose unet or toy_seg, for volumes unet3d");
  if (!segments && model.per_pixel)
    fail(ErrorKind::kUsage,
         recipe.model.name + " predicts a class for each pixel or voxel, and train.task is another",
         "model.name", "Set train.task=segment, or choose another model");
  if (traits_of(recipe.model).is_language && recipe.train.task != TaskKind::kLanguage)
    fail(ErrorKind::kUsage, recipe.model.name + " is a language model, and train.task is another",
         "model.name", "Set train.task=language, or choose another model");
  if (recipe.pipeline.encoder && !model.encoder)
    fail(ErrorKind::kUsage, recipe.model.name + " is not an encoder and a decoder",
         "pipeline.encoder", "Choose unet or toy_seg, or remove it");
  const std::string alone = unsynced_norm(made, model);
  if (recipe.distributed.sync_bn && !alone.empty())
    fail(ErrorKind::kUsage,
         "BatchNorm " + alone + " of " + recipe.model.name + " cannot synchronise its statistics",
         "distributed.sync_bn",
         "Make it a saturate::BatchNorm2d, of batch_norm.h, with its default options, or set "
         "distributed.sync_bn=false");
}

// An encoder that runs ahead of training must not depend on it.
void require_frozen_encoder(Model& model) {
  for (const auto& [name, tensor] : model.parameters())
    if (name.starts_with("encoder.") && tensor.requires_grad())
      fail(ErrorKind::kUsage, "the encoder's parameter " + name + " is not frozen",
           "pipeline.encoder", "Set optimizer.freeze=[\"encoder.*\"]");
}

// "eval_loss, eval_accuracy".
std::string listed_metrics(const std::vector<MetricName>& names, const std::string& prefix) {
  std::string text = prefix + "loss";
  for (const MetricName& each : names)
    if (each.in_training || prefix != "train_") text += ", " + prefix + each.name;
  return text;
}

void require_metric(const std::vector<MetricName>& names, const std::string& key,
                    const std::string& prefix, const std::string& name) {
  const auto known = std::ranges::find(names, name, &MetricName::name);
  if (name == "loss" || (known != names.end() && (known->in_training || prefix != "train_")))
    return;
  fail(ErrorKind::kUsage, "the task has no metric \"" + prefix + name + "\"", key,
       "Choose one of " + listed_metrics(names, prefix));
}

// A record has these two as keys of their own.
void require_own_names(const std::vector<MetricName>& names) {
  for (const MetricName& each : names) {
    const std::string& name = each.name;
    if (name == "accuracy" || name == "accuracy5" || !(name.empty() || is_record_key(name)))
      continue;
    fail(ErrorKind::kUsage, "a metric of the task cannot be named \"" + name + "\"", "metric_names",
         "Choose a name that is not a key of records");
  }
}

}  // namespace

void resolve_metrics(Recipe& recipe, const Task& task) {
  std::vector<MetricName> names = task.metric_names();
  require_own_names(names);
  if (recipe.model.classes > 0 && recipe.model.classes <= 5)  // it would always be 1
    std::erase_if(names, [](const MetricName& each) { return each.name == "accuracy5"; });
  std::string& monitor = recipe.train.monitor;
  if (monitor == "auto") monitor = "eval_" + (names.empty() ? "loss" : names.front().name);
  const size_t prefix = monitor.find('_') + 1;
  require_metric(names, "train.monitor", monitor.substr(0, prefix), monitor.substr(prefix));
  if (traits_of(recipe.schedule).needs_evaluations)
    require_metric(names, "schedule.metric", "", recipe.schedule.metric);
}

TrainingParts make_training_parts(const ModelInput& input, Recipe& recipe, const at::Device& device,
                                  const std::function<void(Model&)>& fill, Group* group,
                                  const OwnParts& own) {
  TrainingParts parts;
  // All runs of a process draw from its one generator: not while another one draws its weights.
  static Mutex drawing;
  MutexLock lock(drawing);
  // Before the draws that count: what follows them is the same for any number of replicas.
  std::vector<Replica> replicas;
  for (const at::Device& other : other_devices(recipe, device)) {
    replicas.push_back({make_model(recipe.model, input), other});
    replicas.back().model->to(other, recipe.train.channels_last);
  }
  at::manual_seed(recipe.seed);
  std::unique_ptr<Model> made = own.model ? nullptr : make_model(recipe.model, input);
  lock.unlock();
  Model& first = own.model ? *own.model : *made;
  if (fill) fill(first);
  first.to(device, recipe.train.channels_last);
  ModelFacets facets = first.facets();
  require_fitting(first, facets, recipe);
  parts.task = own.task ? own.task
                        : make_task(recipe.train, recipe.model.classes, facets,
                                    /*varies=*/input.tensor.is_sequence);
  resolve_metrics(recipe, *parts.task);
  store_all_in_half(first, recipe.precision.mode);
  if (!replicas.empty()) {
    made = make_data_parallel({std::move(made), device}, std::move(replicas));
    facets = made->facets();
  }
  parts.model = own.model ? own.model : std::move(made);
  auto groups = make_parameter_groups(recipe.optimizer, parts.model->parameters());
  if (recipe.pipeline.encoder) require_frozen_encoder(*parts.model);
  if (recipe.optimizer.freeze_statistics) {
    if (!facets.keep_frozen_statistics)
      fail(ErrorKind::kUsage, "the model cannot tell which of its statistics are frozen",
           "optimizer.freeze_statistics", "Remove it, or choose another model.name");
    facets.keep_frozen_statistics();
  }
  const auto make = [&](std::vector<ParameterGroup> of) {
    return own.optimizer ? own.optimizer(std::move(of))
                         : make_optimizer(recipe.optimizer, std::move(of), recipe.precision.mode);
  };
  parts.optimizer = group && recipe.distributed.shard_optimizer
                        ? make_sharded_optimizer(*group, std::move(groups), make)
                        : make(std::move(groups));
  if (WeightAverage::is_wanted(recipe.train))
    parts.average = std::make_unique<WeightAverage>(*parts.model, recipe.train);
  if (recipe.train.lookahead > 0)
    parts.lookahead = std::make_unique<Lookahead>(*parts.model, recipe.train);
  int& segments = recipe.train.checkpoint_segments;
  if (segments == kAutomatic) segments = std::max(1, int(automatic_segments(facets.stages.size())));
  return parts;
}

int64_t bytes_of_checkpoint(const TrainingParts& parts) {
  const auto bytes_of = [](const std::vector<NamedTensor>& tensors) {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) bytes += int64_t(tensor.nbytes());
    return bytes;
  };
  const int64_t weights = bytes_of(model_state(*parts.model));
  return weights + bytes_of(parts.optimizer->state()) +
         (parts.average ? parts.average->bytes() : 0) + (parts.lookahead ? weights : 0);
}

StepOptions step_options(const Recipe& recipe, int micro_batch) {
  const TrainOptions& train = recipe.train;
  return {.precision = recipe.precision,
          .label_smoothing = train.label_smoothing,
          .micro_batch = micro_batch,
          .clip_norm = train.clip_norm,
          .checkpoint_segments = train.checkpoint_segments,
          .cudnn_benchmark = train.cudnn_benchmark,
          .create_on_device = train.create_on_device,
          .keep_memory = train.keep_memory,
          .detect_anomaly = train.detect_anomaly};
}

}  // namespace saturate
