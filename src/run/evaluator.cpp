#include "saturate/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/cancel.h"
#include "run/same_run.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"

namespace saturate {
namespace {

// With values for this machine in place of "auto" and 0, as a run's recipe has them.
Recipe resolved_to_evaluate(Recipe recipe, const at::Device& device) {
  resolve_machine(recipe, device);
  TrainOptions& train = recipe.train;
  if (train.eval_batch == 0) train.eval_batch = train.batch;
  if (train.eval_batch < 1)
    fail(ErrorKind::kUsage, "the batch of an evaluation is not known, since train.batch is auto",
         "train.eval_batch", "Give a number of images");
  return recipe;
}

}  // namespace

struct Evaluator::State {
  State(Env& env, const Recipe& recipe, const std::string& source,
        const std::vector<std::string>& classes, const at::Device& device, bool names,
        const Shard& shard, std::shared_ptr<const Dataset> given,
        const std::vector<TensorField>& fields)
      : data(given ? std::move(given) : open_input(env, source, recipe.data)),
        resident(put_on_device(recipe, eval_loader_options(recipe), checked(recipe, source, fields),
                               source, device)),
        ledger(env),
        feed(*data, resident.get(),
             loader_options(recipe, names, shard, labels_for(recipe, classes, source)), recipe,
             device, ledger),
        options{.precision = recipe.precision.mode,
                .flip = recipe.train.eval_flip,
                .shift = recipe.train.eval_shift,
                .tf32 = recipe.precision.tf32,
                .inference_mode = recipe.train.inference_mode,
                .whole = shard.world == 1} {
    PipelineSetup pipeline{recipe.pipeline};
    pipeline.stages.encoder = false;  // evaluation runs the model in one part
    if (pipeline.stages.any()) feed.feeder.use_pipeline(std::move(pipeline));
  }

  static LoaderOptions loader_options(const Recipe& recipe, bool names, const Shard& shard,
                                      std::vector<int64_t> labels) {
    LoaderOptions options = eval_loader_options(recipe);
    options.labels = std::move(labels);
    options.names = names;
    options.shard = shard;
    options.batch = std::max(options.batch, size_t(shard.world));
    return options;
  }

  const Dataset& checked(const Recipe& recipe, const std::string& source,
                         const std::vector<TensorField>& fields) {
    require_samples(*data, source);
    require_same_tensors(fields, *data, recipe.augment, source);
    require_masks(recipe.train.task, *data, source);
    const TensorField* const target = target_of(data->tensors());
    if (labelled_volume(data->tensors()) && target->values > recipe.model.classes)
      fail(ErrorKind::kUsage,
           fmt::format("the voxels have {} classes, and the model {}", target->values,
                       recipe.model.classes),
           source,
           fmt::format("Train with model.classes={}, or give volumes with the classes of the "
                       "training data",
                       target->values));
    return *data;
  }

  // The classes of whole numbers to predict, and of voxels, are the numbers.
  std::vector<int64_t> labels_for(const Recipe& recipe, const std::vector<std::string>& classes,
                                  const std::string& source) const {
    if (recipe.train.task == TaskKind::kRegress || labelled_volume(data->tensors())) return {};
    return labels_in_model(classes, *data, source, recipe.model.classes);
  }

  std::shared_ptr<const Dataset> data;
  std::unique_ptr<ResidentImages> resident;  // of `data`, or null
  Ledger ledger;  // the feeder's: a run charges an evaluation to one phase
  InputFeed feed;
  EvaluationOptions options;
};

Evaluator::Evaluator(Env& env, const Recipe& recipe, const std::string& source,
                     const std::vector<std::string>& classes, const at::Device& device, bool names,
                     const Shard& shard, std::shared_ptr<const Dataset> data,
                     const std::vector<TensorField>& fields)
    : state_(std::make_unique<State>(env, resolved_to_evaluate(recipe, device), source, classes,
                                     device, names, shard, std::move(data), fields)) {}
Evaluator::~Evaluator() = default;

std::optional<Metrics> Evaluator::run(Model& model, const Task& task,
                                      const EvaluationObserver& observer) {
  Feeder& feeder = state_->feed.feeder;
  feeder.start_epoch(0);
  state_->options.observer = observer;
  const auto found = evaluate(model, task, feeder, state_->options);
  // Cancelled by a signal, it does not wait for reads that hang.
  if (found || !is_cancelled()) feeder.stop();
  return found;
}

void Evaluator::stop() {
  state_->feed.feeder.stop();
}

size_t Evaluator::size() const {
  return state_->data->size();
}

std::string Evaluator::warning() const {
  return state_->data->warning();
}

std::vector<SkippedSample> Evaluator::skipped() const {
  return state_->feed.loader.skipped();
}

}  // namespace saturate
