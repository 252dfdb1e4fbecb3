// What a run needs before its first step: data, model, optimizer, and where it left off.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/printable.h"
#include "feed/compute_threads.h"
#include "run/same_data.h"
#include "run/single_image.h"
#include "run/staged_copy.h"
#include "run/trainer_state.h"
#include "run/training_parts.h"
#include "saturate/compiled_step.h"
#include "saturate/error.h"
#include "saturate/gradients.h"
#include "saturate/host.h"
#include "saturate/input.h"
#include "step/precision.h"

namespace saturate {
namespace {

std::unique_ptr<FileLock> lock_folder(Env& env, const std::string& folder) {
  env.make_directories(folder);
  return env.lock(folder + "/.lock");
}

// Shows how far something is that is done to all of a source before the run; gives up when asked.
ProgressCallback progress_of(Env& env, const TrainerOptions& options, const std::string& title,
                             const std::string& source) {
  return [&env, &options, title, source, bar = std::shared_ptr<Progress>()](size_t done,
                                                                            size_t total) mutable {
    if (options.should_stop())
      fail(ErrorKind::kRun, "stopped before the first step", source, "Run it again");
    if (!bar)
      bar = std::make_shared<Progress>(env, title, "samples", int64_t(total), options.progress);
    bar->update(int64_t(done), "");
  };
}

std::unique_ptr<Dataset> open_source(Env& env, const DataOptions& data,
                                     const TrainerOptions& options) {
  if (options.open) return options.open();
  return open_input(env, data.source, data, progress_of(env, options, "copy", data.source));
}

LoaderOptions sharded(LoaderOptions options, const Shard& shard) {
  options.shard = shard;
  return options;
}

// What several processes cannot do is refused before the batch is looked for.
Recipe checked_for(const Group* group, Recipe recipe) {
  if (group) validate_world(recipe, group->world());
  return recipe;
}

// Refuses what the machine lacks before data is opened.
at::Device device_for(const Recipe& recipe) {
  const at::Device device = resolve_device(recipe.train.device);
  other_devices(recipe, device);
  return device;
}

// Of what is above 0 at least a byte: 0 is no limit.
int64_t to_bytes(double gib) {
  return gib > 0 ? std::max<int64_t>(1, std::llround(gib * double(int64_t{1} << 30))) : 0;
}

// As why_no_graph(), of machine and build.
std::string why_no_graph_on(const at::Device& device) {
  if (!device.is_cuda()) return "the run is on a CPU";
  return has_cuda_graphs() ? "" : "this build has no CUDA graphs";
}

// A resumed run goes on with the batch that was found for it.
Recipe with_saved_batch(Env& env, Recipe recipe, const std::optional<std::string>& resume) {
  if (recipe.train.batch != kAutomatic || !resume) return recipe;
  std::string path;
  const Checkpoint checkpoint = find_checkpoint(
      env, *resume, [](const std::string&) {}, &path);
  const TrainOptions saved = parse_recipe(checkpoint.recipe_toml, path).train;
  recipe.train.batch = saved.batch;
  recipe.train.accumulate = saved.accumulate;
  recipe.train.effective_batch = 0;
  if (recipe.train.eval_batch == 0) recipe.train.eval_batch = saved.eval_batch;
  return recipe;
}

}  // namespace

Trainer::State::State(Env& env_in, const Recipe& recipe_in, TrainerOptions options_in)
    : env(env_in),
      options(std::move(options_in)),
      group(options.group.get()),
      lock(is_first() ? lock_folder(env, options.out) : nullptr),
      device(device_for(recipe_in)),
      memory(tensor_memory(device)),
      budget(memory, to_bytes(recipe_in.train.memory_gb)),
      ledger(env, &memory),
      streams(make_stream_clock(device)),
      device_phases(make_device_phases(device)),
      cpu_begin(cpu_seconds()),
      begin_ns(env.now_ns()),
      data(open_source(env, recipe_in.data, options)),
      recipe(resolve_batch(
          env,
          checked_for(group, resolve_recipe(with_saved_batch(env, recipe_in, options.resume), *data,
                                            device)),
          *data, device)),
      resident(put_on_device(recipe, train_loader_options(recipe), *data, recipe.data.source,
                             device, progress_of(env, options, "cache", recipe.data.source))),
      loader(resident ? *resident : *data, sharded(train_loader_options(recipe), shard()),
             recipe.augment, batch_allocator(device)),
      feeder(loader, device, recipe.train.channels_last, ledger, recipe.augment,
             resident ? resident->held() : HeldImages(), streams.get()),
      store(env, options.out + "/checkpoints", recipe.checkpoint.keep, recipe.checkpoint.keep_best,
            is_first()),
      writer(env, store, make_staged_copy(device)),
      agreement(group),
      stopping(make_early_stopping(recipe.train)),
      saved_ns(begin_ns),
      heartbeat(start_heartbeat([this] {
        return fmt::format("step {}, in {}", steps_made.load(), phase_name(ledger.current()));
      })) {
  set_compute_threads(recipe.train.threads);
  epoch_steps = int64_t(loader.batches());
  if (epoch_steps == 0)
    fail(ErrorKind::kUsage, "an epoch has no full batch", "train.batch",
         "Lower train.batch, or set train.drop_last=false");
  const double steps = std::ceil(recipe.train.epochs * double(epoch_steps) - 1e-9);
  if (steps > 0x1p53)  // above, a double does not count them one by one
    fail(ErrorKind::kUsage, "the run has more than 2^53 steps", "train.epochs", "Lower it");
  total_steps = int64_t(steps);
  schedule = std::make_unique<Schedule>(recipe.schedule, total_steps, epoch_steps);
  build_model();
  if (!recipe.data.eval_source.empty())
    evaluator = std::make_unique<Evaluator>(
        env, recipe, recipe.data.eval_source, data->classes(), device,
        /*names=*/recipe.watch.samples > 0, Shard{shard().rank, shard().world, Uneven::kJoin});
  const int replicas = 1 + int(other_devices(recipe, device).size());
  require_no_single_image(*model, recipe, data->size(), {shard(), replicas}, device);
  if (options.resume)
    resume();
  else
    prepare_model();
  require_finite_weights();
  if (group) join_group();
  if (options.resume && is_finished()) result.was_finished = true;
  if (!result.was_finished) require_room();
  const auto left = begin_branch();
  if (result.was_finished) return;
  if (is_first()) {
    write_atomically(env, options.out + "/recipe.toml", to_toml(recipe));
    write_atomically(env, options.out + "/host.json", host_json());
    prepare_watching();
    telemetry = make_telemetry();
  }
  log = std::make_unique<RunLog>(env, recipe,
                                 RunLog::Plan{options.out, options.progress, epoch_steps,
                                              total_steps, position, is_first(), shard().world},
                                 ledger, telemetry.get(), streams.get());
  if (recipe_in.train.batch == kAutomatic)
    log->note(fmt::format("train.batch=auto: {} images a step, {} of them at once",
                          recipe.train.batch, images_per_part(recipe.train)));
  introduce(recipe_in);
  note_weights();
  for (const std::string& note : resume_notes) log->note(note);
  if (!left.empty())
    log->note(
        fmt::format("from step {} on, this is a new branch of the run: {} of the checkpoints in {} "
                    "are left aside, where only their own path leads to them",
                    position.step, left.size(), options.out + "/checkpoints"));
  plan_graph();
}

// Steps as one graph, where they can be.
void Trainer::State::plan_graph() {
  if (recipe.train.graph == GraphMode::kOff) return;
  if (!options.make_graph) why_not_graphed = why_no_graph_on(device);
  if (why_not_graphed.empty()) why_not_graphed = why_no_graph(recipe, group ? group->world() : 1);
  if (!why_not_graphed.empty()) {
    log->note("train.graph=auto: the steps run as they are, for " + why_not_graphed);
    return;
  }
  GraphSetup setup;
  setup.batch = recipe.train.batch;
  setup.make = options.make_graph ? options.make_graph : [this] { return make_cuda_graph(device); };
  setup.finish = [this](DeviceBatch& batch) { feeder.finish(batch); };
  graphed = std::make_unique<GraphedStep>(*step, *optimizer, device, ledger, std::move(setup));
  feeder.leave_unfinished(true);
}

std::string Trainer::State::graph_line() const {
  if (!graphed) return why_not_graphed.empty() ? "" : "not used: " + why_not_graphed;
  const std::string count =
      fmt::format("{} of {} steps replayed", graphed->replayed(), graphed->steps());
  return graphed->given_up().empty() ? count : count + ", then given up: " + graphed->given_up();
}

// Says which weights are not those of the file.
void Trainer::State::note_weights() {
  if (!loaded) return;
  std::string text =
      fmt::format("model.weights: {} tensors of {}", loaded->taken.size(), recipe.model.weights);
  if (loaded->averaged)
    text += ", the averaged ones, as of eval and export (export --plain writes the others)";
  if (!loaded->fresh.empty())
    text += fmt::format("; {} begin anew", fmt::join(loaded->fresh, ", "));
  log->note(text);
}

// Else the first loss would be blamed on the learning rate. An infinite buffer may be a mask.
void Trainer::State::require_finite_weights() {
  std::string name = first_non_finite(model->parameters());
  for (const auto& [buffer, tensor] : model->buffers())
    if (name.empty() && at::isnan(tensor).any().item<bool>()) name = buffer;
  if (name.empty()) return;
  const bool from_file = !recipe.model.weights.empty() || !recipe.model.file.empty();
  const std::string file = recipe.model.weights.empty() ? recipe.model.file : recipe.model.weights;
  fail(ErrorKind::kRun, name + " is not finite before the first step",
       options.resume ? *options.resume
       : from_file    ? file
                      : "model.name",
       options.resume ? "Go on from an older checkpoint, or train anew"
       : from_file    ? "Give weights that hold numbers alone"
                      : "Look at how the model draws its weights");
}

// Those that steps of other trainers may have changed.
void Trainer::State::set_switches() {
  at::set_num_threads(recipe.train.threads);
  step->set_switches();
}

void Trainer::State::build_model() {
  // A resumed run has its weights in its checkpoint.
  const bool from_file = !recipe.model.weights.empty() && !options.resume;
  TrainingParts parts = make_training_parts(
      recipe, device,
      [&](Model& drawn) {
        if (from_file)
          loaded = load_weights(env, recipe.model.weights, drawn, recipe.model.weights_match,
                                recipe.model.weights_prefix);
      },
      group);
  model = std::move(parts.model);
  optimizer = std::move(parts.optimizer);
  average = std::move(parts.average);
  lookahead = std::move(parts.lookahead);
  const int world = shard().world;
  const int part = (images_per_part(recipe.train) + world - 1) / world;  // of this process
  step = std::make_unique<TrainStep>(*model, *optimizer, step_options(recipe, part), ledger);
  if (!recipe.train.compiled.empty())
    step->use_compiled(std::make_unique<CompiledStep>(env, recipe, *model, world));
  if (recipe.pipeline.any()) feeder.use_pipeline(pipeline_setup());
}

// Autocast, like the absence of gradients, is each thread's own.
PipelineSetup Trainer::State::pipeline_setup() {
  PipelineSetup setup{recipe.pipeline};
  setup.before = options.before_stage;
  setup.encode = [this](const at::Tensor& images) {
    const c10::NoGradGuard no_grad;
    AutocastScope autocast(recipe.precision.mode, images.device().type());
    return model->encode(images);
  };
  return setup;
}

// The first of training, about as many as wanted: with several processes those that one would see.
at::Tensor Trainer::State::first_images(int64_t wanted) {
  const Dataset& source = resident ? *resident : *data;
  std::optional<Loader> whole;
  std::optional<Feeder> own;
  if (group) {
    whole.emplace(source, train_loader_options(recipe), recipe.augment, batch_allocator(device));
    own.emplace(*whole, device, recipe.train.channels_last, ledger, recipe.augment,
                resident ? resident->held() : HeldImages(), streams.get());
  }
  Feeder& from = own ? *own : feeder;
  std::vector<at::Tensor> images;
  DeviceBatch batch;
  int64_t count = 0;
  from.start_epoch(0);
  while (count < wanted && from.next(batch)) {
    count += batch.count();
    images.push_back(batch.images.to(at::kFloat));
  }
  from.stop();
  return at::cat(images);
}

// Shows the model as many of the first training images as it wants to see. What came out of a file
// of weights stays as it is. Other processes take rank 0's weights.
void Trainer::State::prepare_model() {
  const bool only_part = loaded && !recipe.model.weights_match.empty();
  if (model->wanted_images() == 0 || (loaded && !only_part) || !is_first()) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  if (only_part)
    for (const auto& tensors : {model->parameters(), model->buffers()})
      for (const auto& [name, tensor] : tensors)
        if (std::ranges::find(loaded->taken, name) != loaded->taken.end())
          kept.emplace_back(tensor.detach(), tensor.detach().clone());
  model->prepare(first_images(model->wanted_images()));
  const c10::NoGradGuard no_grad;
  for (const auto& [tensor, value] : kept) tensor.copy_(value);
}

void Trainer::State::resume() {
  std::string& path = resumed_from;
  const Checkpoint checkpoint = find_checkpoint(env, *options.resume, print_warning, &path);
  require_same_data(checkpoint, *data, recipe.data.source, options.changed_data);
  const Recipe saved = parse_recipe(checkpoint.recipe_toml, path);
  if (saved.train.batch != recipe.train.batch || saved.seed != recipe.seed)
    fail(ErrorKind::kUsage, "seed or train.batch differs from the run to resume", path,
         "Leave both as they were: a resumed run goes on with the same batches");
  load_into(*model, checkpoint.model, path);
  optimizer->load_state(checkpoint.optimizer);
  step->load_scaler_state(checkpoint.scaler);
  schedule->load_state(checkpoint.schedule);
  if (average) average->load_state(checkpoint.average, path);
  if (lookahead) lookahead->load_state(checkpoint.lookahead, path);
  position = resumed = checkpoint.position;
  sound_step = position.step;
  load_random_states(checkpoint.random);
  epoch_metrics = checkpoint.epoch_metrics;
  evaluation = checkpoint.evaluation;
  resume_best(checkpoint, saved);
  steps_made = position.step;
  final_weights = checkpoint.final_weights;
  unsaved = !store.holds(path);
}

// Before anything is written: gives the checkpoints that the run leaves.
std::vector<std::string> Trainer::State::begin_branch() {
  if (!options.save || !is_first()) return {};
  return store.begin(resumed_from);
}

// A best value, and what "plateau" compares with, are of one metric over the same images.
void Trainer::State::resume_best(const Checkpoint& checkpoint, const Recipe& saved) {
  const int64_t images = evaluator ? int64_t(evaluator->size()) : 0;
  const bool same_images =
      images == 0 || checkpoint.eval_images == 0 || checkpoint.eval_images == images;
  const bool trains = is_training_metric(recipe.train.monitor);
  const bool same_metric = saved.train.monitor == recipe.train.monitor &&
                           is_maximized(saved.train) == is_maximized(recipe.train);
  const auto why = [&](bool same, const char* key) {
    return same ? fmt::format("the evaluation has {} images, and had {}", images,
                              checkpoint.eval_images)
                : std::string(key) + " is another than it was";
  };
  if (same_metric && (trains || same_images)) {
    stopping.load(checkpoint.best);
  } else {
    // What is resumed from was evaluated, so that a worse one is not taken for the best.
    if (!trains && same_images && evaluated_step() == position.step)
      stopping.observe(monitored_value(recipe.train.monitor, evaluation->metrics), position.step);
    resume_notes.push_back(why(same_metric, "train.monitor") + ": its best value begins anew");
  }
  const bool same_plateau = saved.schedule.metric == recipe.schedule.metric;
  if (!schedule->listens() || (same_plateau && same_images)) return;
  schedule->forget_best();
  resume_notes.push_back(why(same_plateau, "schedule.metric") +
                         ": the schedule compares anew, from the rate that it has come to");
}

}  // namespace saturate
