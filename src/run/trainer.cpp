#include "saturate/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>

#include "run/setup.h"
#include "saturate/checkpoint.h"
#include "saturate/evaluator.h"
#include "saturate/gradients.h"
#include "saturate/metrics.h"
#include "saturate/schedule.h"

namespace saturate {
namespace {

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + time.tv_usec * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t memory_peak_bytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) * 1024;
}

void set_metrics(MetricsRecord& record, const Metrics& metrics) {
  record.loss = metrics.loss;
  record.accuracy = metrics.accuracy;
  record.accuracy5 = metrics.accuracy5;
}

std::string where_non_finite(Model& model) {
  const std::string name = first_non_finite(model);
  return name.empty() ? "" : ", nor is " + name;
}

std::string percent(double share) {
  return fmt::format("{:.2f}%", share * 100);
}

}  // namespace

struct Trainer::State {
  State(Env& env_in, const Recipe& recipe_in, TrainerOptions options_in);

  void build_model();
  void prepare_model();
  void resume();
  TrainResult run();
  bool train_epoch();  // false when asked to stop
  void train_batch(const DeviceBatch& batch);
  void record_steps();
  void finish_epoch();
  void evaluate_now();
  void save_checkpoint();
  void warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t count, size_t& warned);
  MetricsRecord record(const std::string& kind);
  double time_s() { return resumed.time_s + ledger.times().total(); }
  // Wall time without evaluation and checkpoints, which images/s leaves out.
  double training_s(const PhaseTimes& times) {
    return times.total() - times[Phase::kEvaluation] - times[Phase::kCheckpoint];
  }

  Env& env;
  TrainerOptions options;
  Ledger ledger;
  double cpu_begin = cpu_seconds();
  at::Device device;
  std::unique_ptr<Dataset> data;
  Recipe recipe;
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Evaluator> evaluator;
  Loader loader;
  Feeder feeder;
  CheckpointStore store;
  std::unique_ptr<MetricsWriter> metrics;
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<Progress> progress;

  int64_t epoch_steps, total_steps;
  std::unique_ptr<Schedule> schedule;
  RunPosition position, resumed;
  int64_t saved_step = -1, evaluated_step = -1;
  double lr = 0;
  RunningMetrics running;  // since the last "step" record
  Metrics epoch_metrics;   // of this epoch, up to the last "step" record
  PhaseTimes step_mark, epoch_mark;
  size_t warned_train = 0, warned_eval = 0;  // skipped samples already named
  std::string details;
  TrainResult result;
};

Trainer::State::State(Env& env_in, const Recipe& recipe_in, TrainerOptions options_in)
    : env(env_in),
      options(std::move(options_in)),
      ledger(env),
      device(resolve_device(recipe_in.train.device)),
      data(open_dataset(env, recipe_in.data.source)),
      recipe(resolve_recipe(recipe_in, *data, device)),
      loader(*data, train_loader_options(recipe), recipe.augment, batch_allocator(device)),
      feeder(loader, device, recipe.train.channels_last, ledger),
      store(env, options.out + "/checkpoints", recipe.checkpoint.keep) {
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
  metrics = std::make_unique<MetricsWriter>(env, options.out + "/metrics.jsonl", position.step);
}

void Trainer::State::build_model() {
  at::manual_seed(recipe.seed);
  model = make_model(recipe.model, {recipe.model.classes, recipe.augment.size});
  model->to(device, recipe.train.channels_last);
  optimizer =
      make_optimizer(recipe.optimizer, make_parameter_groups(recipe.optimizer, model->parameters()),
                     recipe.precision.mode);
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
  const auto warn = [](const std::string& text) {
    fmt::print(stderr, "saturate: warning: {}\n", text);
  };
  const Checkpoint checkpoint = find_checkpoint(env, *options.resume, warn, &path);
  require_same_classes(checkpoint.classes, data->classes(), recipe.data.source);
  const Recipe saved = parse_recipe(checkpoint.recipe_toml, path);
  if (saved.train.batch != recipe.train.batch || saved.seed != recipe.seed)
    fail(ErrorKind::kUsage, "seed or train.batch differs from the run to resume", path,
         "Leave both as they were: a resumed run goes on with the same batches");
  load_into(*model, checkpoint.model, path);
  step->load_state(checkpoint.optimizer);
  schedule->load_state(checkpoint.optimizer);
  position = resumed = checkpoint.position;
  saved_step = position.step;
}

MetricsRecord Trainer::State::record(const std::string& kind) {
  MetricsRecord record;
  record.kind = kind;
  record.step = position.step;
  record.epoch = double(position.step) / double(epoch_steps);
  record.samples = position.samples;
  record.time_s = time_s();
  record.memory_peak_bytes = memory_peak_bytes();
  return record;
}

void Trainer::State::record_steps() {
  const Metrics part = running.read();
  if (part.samples == 0) return;
  if (!std::isfinite(part.loss))
    fail(
        ErrorKind::kRun,
        fmt::format("the loss is not finite by step {}{}", position.step, where_non_finite(*model)),
        options.out, "Lower optimizer.lr or lengthen schedule.warmup_epochs");
  epoch_metrics.merge(part);
  MetricsRecord line = record("step");
  set_metrics(line, part);
  line.lr = lr;
  const PhaseTimes now = ledger.times();
  line.phases = now - step_mark;
  line.images_per_s = double(part.samples) / training_s(*line.phases);
  step_mark = now;
  metrics->write(line);
  details = fmt::format("epoch {:.1f}/{:g}  loss {:.4f}  acc {}  {:.0f} img/s", line.epoch,
                        recipe.train.epochs, part.loss, percent(part.accuracy), *line.images_per_s);
}

void Trainer::State::train_batch(const DeviceBatch& batch) {
  lr = recipe.optimizer.lr * schedule->factor(position.step);
  step->run(batch, lr, running);
  Ledger::Scope host(ledger, Phase::kHost);
  ++position.step;
  ++position.batch;
  position.samples += batch.count();
  result.samples += batch.count();
  if (position.step % recipe.watch.every == 0) record_steps();
  progress->update(position.step, details);
  if (loader.skipped_count() != warned_train)
    warn_of_skipped(loader.skipped(), loader.skipped_count(), warned_train);
}

// Names what was skipped since the last call; only the first hundred have names.
void Trainer::State::warn_of_skipped(const std::vector<SkippedSample>& skipped, size_t count,
                                     size_t& warned) {
  for (size_t i = warned; i < skipped.size(); ++i)
    progress->note(
        fmt::format("saturate: warning: skipped {}: {}", skipped[i].name, skipped[i].reason));
  warned = count;
}

bool Trainer::State::train_epoch() {
  DeviceBatch batch;
  epoch_metrics = {};
  epoch_mark = step_mark = ledger.times();
  loader.start_epoch(uint32_t(position.epoch), size_t(position.batch));
  while (position.step < total_steps && feeder.next(batch)) {
    train_batch(batch);
    if (options.should_stop()) {
      record_steps();
      return false;
    }
  }
  loader.stop();
  ++position.epoch;
  position.batch = 0;
  return true;
}

void Trainer::State::finish_epoch() {
  Ledger::Scope host(ledger, Phase::kHost);
  record_steps();
  if (epoch_metrics.samples > 0) {
    MetricsRecord line = record("epoch");
    set_metrics(line, epoch_metrics);
    line.lr = lr;
    line.phases = ledger.times() - epoch_mark;
    line.images_per_s = double(epoch_metrics.samples) / training_s(*line.phases);
    metrics->write(line);
    progress->note(fmt::format("epoch {}/{:g}  loss {:.4f}  acc {}  {:.0f} images/s  {}",
                               position.epoch, recipe.train.epochs, epoch_metrics.loss,
                               percent(epoch_metrics.accuracy), *line.images_per_s,
                               format_duration(line.phases->total())));
    result.train = epoch_metrics;
  }
  const int every = recipe.train.eval_every;
  if (every > 0 && position.epoch % every == 0) evaluate_now();
  const int save_every = recipe.checkpoint.every;
  if (save_every > 0 && position.epoch % save_every == 0) save_checkpoint();
}

void Trainer::State::evaluate_now() {
  if (!evaluator || evaluated_step == position.step) return;
  Ledger::Scope scope(ledger, Phase::kEvaluation);
  const double begin = ledger.times().total();
  const Metrics found = evaluator->run(*model);
  const auto skipped = evaluator->skipped();
  warn_of_skipped(skipped, skipped.size(), warned_eval);
  MetricsRecord line = record("eval");
  set_metrics(line, found);
  line.images_per_s = double(found.samples) / (ledger.times().total() - begin);
  metrics->write(line);
  progress->note(fmt::format(
      "          eval  loss {:.4f}  acc {}{}  on {} images", found.loss, percent(found.accuracy),
      found.accuracy5 ? "  acc5 " + percent(*found.accuracy5) : "", found.samples));
  schedule->observe(found.loss, found.accuracy);
  result.eval = found;
  evaluated_step = position.step;
}

void Trainer::State::save_checkpoint() {
  if (saved_step == position.step) return;
  Ledger::Scope scope(ledger, Phase::kCheckpoint);
  position.time_s = time_s();
  Checkpoint checkpoint{
      position,     to_toml(recipe), data->classes(), recipe.augment.size, model_state(*model),
      step->state()};
  for (const auto& named : schedule->state()) checkpoint.optimizer.push_back(named);
  result.checkpoint = store.save(checkpoint);
  saved_step = position.step;
}

TrainResult Trainer::State::run() {
  progress = std::make_unique<Progress>(
      env, "train", "steps", total_steps,
      recipe.watch.progress ? options.progress : Progress::Style::kSilent);
  progress->start_at(position.step);
  model->set_training(true);
  while (position.step < total_steps && !result.stopped) {
    if (train_epoch())
      finish_epoch();
    else
      result.stopped = true;
  }
  if (!result.stopped) evaluate_now();
  save_checkpoint();
  progress.reset();
  MetricsRecord line = record("end");
  if (result.eval) set_metrics(line, *result.eval);
  result.phases = ledger.times();
  line.phases = result.phases;
  metrics->write(line);

  result.steps = position.step;
  result.steps_here = position.step - resumed.step;
  result.wall_s = result.phases.total();
  result.cores_used = (cpu_seconds() - cpu_begin) / result.wall_s;
  result.memory_peak_bytes = memory_peak_bytes();
  result.skipped_count = loader.skipped_count();
  result.skipped = loader.skipped();
  return result;
}

Trainer::Trainer(Env& env, const Recipe& recipe, TrainerOptions options)
    : state_(std::make_unique<State>(env, recipe, std::move(options))) {}
Trainer::~Trainer() = default;
TrainResult Trainer::run() {
  return state_->run();
}
const Recipe& Trainer::recipe() const {
  return state_->recipe;
}

}  // namespace saturate
