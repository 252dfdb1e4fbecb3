#include "saturate/evaluator.h"

#include "run/setup.h"
#include "saturate/dataset.h"

namespace saturate {

struct Evaluator::State {
  State(Env& env, const Recipe& recipe, const std::string& source,
        const std::vector<std::string>& classes, const at::Device& device)
      : data(open_dataset(env, source)),
        loader(checked(source, classes), eval_loader_options(recipe), recipe.augment,
               batch_allocator(device)),
        ledger(env),
        feeder(loader, device, recipe.train.channels_last, ledger),
        precision(recipe.precision.mode),
        flip(recipe.train.eval_flip) {}

  const Dataset& checked(const std::string& source, const std::vector<std::string>& classes) {
    require_same_classes(classes, data->classes(), source);
    return *data;
  }

  std::unique_ptr<Dataset> data;
  Loader loader;
  Ledger ledger;  // the feeder's own: a run charges an evaluation as a whole
  Feeder feeder;
  PrecisionMode precision;
  bool flip;
};

Evaluator::Evaluator(Env& env, const Recipe& recipe, const std::string& source,
                     const std::vector<std::string>& classes, const at::Device& device)
    : state_(std::make_unique<State>(env, recipe, source, classes, device)) {}
Evaluator::~Evaluator() = default;

Metrics Evaluator::run(Model& model) {
  state_->loader.start_epoch(0);
  return evaluate(model, state_->feeder, state_->precision, state_->flip);
}

size_t Evaluator::size() const {
  return state_->data->size();
}

std::vector<SkippedSample> Evaluator::skipped() const {
  return state_->loader.skipped();
}

}  // namespace saturate
