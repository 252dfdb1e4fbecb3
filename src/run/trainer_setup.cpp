// What a run needs before its first step: data, model, optimizer, and where it left off.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <cmath>

#include "run/trainer_state.h"
#include "saturate/error.h"
#include "saturate/host.h"

namespace saturate {
namespace {

void warn(const std::string& text) {
  fmt::print(stderr, "saturate: warning: {}\n", text);
}

std::unique_ptr<FileLock> lock_folder(Env& env, const std::string& folder) {
  env.make_directories(folder);
  return env.lock(folder + "/.lock");
}

}  // namespace

Trainer::State::State(Env& env_in, const Recipe& recipe_in, TrainerOptions options_in)
    : env(env_in),
      options(std::move(options_in)),
      lock(lock_folder(env, options.out)),
      ledger(env),
      cpu_begin(cpu_seconds()),
      begin_ns(env.now_ns()),
      device(resolve_device(recipe_in.train.device)),
      data(open_dataset(env, recipe_in.data.source)),
      recipe(resolve_recipe(recipe_in, *data, device)),
      loader(*data, train_loader_options(recipe), recipe.augment, batch_allocator(device)),
      feeder(loader, device, recipe.train.channels_last, ledger),
      store(env, options.out + "/checkpoints", recipe.checkpoint.keep, recipe.checkpoint.keep_best),
      writer(env, store),
      stopping(make_early_stopping(recipe.train)),
      saved_ns(begin_ns) {
  at::set_num_threads(recipe.train.threads);
  epoch_steps = int64_t(loader.batches());
  if (epoch_steps == 0)
    fail(ErrorKind::kUsage, "an epoch has no full batch", "train.batch",
         "Lower train.batch, or set train.drop_last=false");
  total_steps = int64_t(std::ceil(recipe.train.epochs * double(epoch_steps) - 1e-9));
  schedule = std::make_unique<Schedule>(recipe.schedule, total_steps, epoch_steps);
  build_model();
  if (!recipe.data.eval_source.empty())
    evaluator =
        std::make_unique<Evaluator>(env, recipe, recipe.data.eval_source, data->classes(), device);
  if (options.resume)
    resume();
  else
    prepare_model();
  write_atomically(env, options.out + "/recipe.toml", to_toml(recipe));
  write_atomically(env, options.out + "/host.json", host_json());
  log = std::make_unique<RunLog>(
      env, recipe, RunLog::Plan{options.out, options.progress, epoch_steps, total_steps, position},
      ledger);
}

void Trainer::State::build_model() {
  at::manual_seed(recipe.seed);
  model = make_model(recipe.model, {recipe.model.classes, recipe.augment.size});
  model->to(device, recipe.train.channels_last);
  optimizer =
      make_optimizer(recipe.optimizer, make_parameter_groups(recipe.optimizer, model->parameters()),
                     recipe.precision.mode);
  if (recipe.train.ema > 0) average.emplace(*model, recipe.train.ema);
  const StepOptions step_options{recipe.precision, recipe.train.label_smoothing,
                                 images_per_part(recipe.train), recipe.train.clip_norm};
  step = std::make_unique<TrainStep>(*model, *optimizer, step_options, ledger);
}

// Shows the model as many of the first training images as it wants to see.
void Trainer::State::prepare_model() {
  const int64_t wanted = model->wanted_images();
  if (wanted == 0) return;
  std::vector<at::Tensor> images;
  DeviceBatch batch;
  int64_t count = 0;
  loader.start_epoch(0);
  while (count < wanted && feeder.next(batch)) {
    count += batch.count();
    images.push_back(batch.images);
  }
  loader.stop();
  model->prepare(at::cat(images));
}

void Trainer::State::resume() {
  std::string path;
  const Checkpoint checkpoint = find_checkpoint(env, *options.resume, warn, &path);
  require_same_classes(checkpoint.classes, data->classes(), recipe.data.source);
  const Recipe saved = parse_recipe(checkpoint.recipe_toml, path);
  if (saved.train.batch != recipe.train.batch || saved.seed != recipe.seed)
    fail(ErrorKind::kUsage, "seed or train.batch differs from the run to resume", path,
         "Leave both as they were: a resumed run goes on with the same batches");
  load_into(*model, checkpoint.model, path);
  optimizer->load_state(checkpoint.optimizer);
  step->load_scaler_state(checkpoint.scaler);
  schedule->load_state(checkpoint.schedule);
  if (average) average->load_state(checkpoint.average, path);
  for (const auto& [name, state] : checkpoint.random) {
    if (name != "cpu" && at::Device(name).type() != device.type()) continue;
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(name));
    generator.set_state(state);
  }
  position = resumed = checkpoint.position;
  epoch_metrics = checkpoint.epoch_metrics;
  evaluation = checkpoint.evaluation;
  stopping.load(checkpoint.best);
  unsaved = path != store.path_of(position.step);
}

}  // namespace saturate
