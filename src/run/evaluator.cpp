#include "saturate/evaluator.h"

#include <algorithm>
#include <utility>

#include "run/same_run.h"
#include "run/setup.h"
#include "saturate/data/input.h"

namespace saturate {

struct Evaluator::State {
  State(Env& env, const Recipe& recipe, const std::string& source,
        const std::vector<std::string>& classes, const at::Device& device, bool names,
        const Shard& shard, std::shared_ptr<const Dataset> given)
      : data(given ? std::move(given) : open_input(env, source, recipe.data)),
        resident(put_on_device(recipe, eval_loader_options(recipe), checked(recipe, source), source,
                               device)),
        loader(*data, loader_options(recipe, names, shard, labels_in_model(classes, *data, source)),
               recipe.augment, batch_allocator(device)),
        ledger(env),
        feeder(loader, device, recipe.train.channels_last, ledger, recipe.augment,
               resident ? resident->held() : HeldImages()),
        options(evaluation_options(recipe)) {
    PipelineSetup pipeline{recipe.pipeline};
    pipeline.stages.encoder = false;  // which is no part of feeding: the model is run as a whole
    if (pipeline.stages.any()) feeder.use_pipeline(std::move(pipeline));
  }

  static EvaluationOptions evaluation_options(const Recipe& recipe) {
    EvaluationOptions options;
    options.precision = recipe.precision.mode;
    options.tf32 = recipe.precision.tf32;
    options.flip = recipe.train.eval_flip;
    options.shift = recipe.train.eval_shift;
    options.inference_mode = recipe.train.inference_mode;
    return options;
  }
  LoaderOptions loader_options(const Recipe& recipe, bool names, const Shard& shard,
                               std::vector<int64_t> labels) {
    LoaderOptions options = eval_loader_options(recipe);
    if (resident) options.held = resident->samples();
    options.labels = std::move(labels);
    options.names = names;
    options.shard = shard;
    options.batch = std::max(options.batch, size_t(shard.world));
    return options;
  }

  const Dataset& checked(const Recipe& recipe, const std::string& source) {
    require_masks(recipe.train.task, *data, source);
    return *data;
  }

  std::shared_ptr<const Dataset> data;
  std::unique_ptr<ResidentImages> resident;  // of `data`, or null
  Loader loader;
  Ledger ledger;  // the feeder's own: a run charges an evaluation as a whole
  Feeder feeder;
  EvaluationOptions options;
};

Evaluator::Evaluator(Env& env, const Recipe& recipe, const std::string& source,
                     const std::vector<std::string>& classes, const at::Device& device, bool names,
                     const Shard& shard, std::shared_ptr<const Dataset> data)
    : state_(std::make_unique<State>(env, recipe, source, classes, device, names, shard,
                                     std::move(data))) {}
Evaluator::~Evaluator() = default;

std::optional<Metrics> Evaluator::run(Model& model, const Task& task,
                                      const EvaluationObserver& observer) {
  state_->feeder.start_epoch(0);
  state_->options.observer = observer;
  const auto found = evaluate(model, task, state_->feeder, state_->options);
  state_->feeder.stop();
  return found;
}

size_t Evaluator::size() const {
  return state_->data->size();
}

std::string Evaluator::warning() const {
  return state_->data->warning();
}

std::vector<SkippedSample> Evaluator::skipped() const {
  return state_->loader.skipped();
}

}  // namespace saturate
