#include "run/learner.h"

#include <ATen/Parallel.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "run/setup.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/optimizer.h"
#include "step/compiled_step.h"
#include "step/precision.h"

namespace saturate {
namespace {

// As why_no_graph(), of machine and build.
std::string why_no_graph_on(const at::Device& device) {
  if (!device.is_cuda()) return "the run is on a CPU";
  return has_cuda_graphs() ? "" : "this build has no CUDA graphs";
}

// A program's own schedule needs nothing of the recipe's.
ScheduleOptions schedule_options(const RunContext& run) {
  if (!run.options.schedule) return run.recipe.schedule;
  ScheduleOptions none;
  none.name = "constant";
  return none;
}

}  // namespace

Learner::Learner(RunContext& run, RunInput& input, int64_t total_steps)
    : run_(run), input_(input), schedule_(schedule_options(run), total_steps, input.epoch_steps()) {
  Recipe& recipe = run.recipe;
  switches_.set({.threads = recipe.train.threads});
  // A resumed run has its weights in its checkpoint.
  const bool from_file = !recipe.model.weights.empty() && !run.options.resume;
  parts_ = make_training_parts(
      model_input(run.env, recipe, batch_fields(input.data(), recipe.augment)), recipe, run.device,
      [&](Model& drawn) {
        if (from_file)
          loaded_ = load_weights(run.env, recipe.model.weights, drawn, recipe.model.weights_match,
                                 recipe.model.weights_prefix);
      },
      run.group, {run.options.model, run.options.task, run.options.optimizer});
  for (const MetricName& each : parts_.task->metric_names())
    if (each.name == recipe.schedule.metric && !each.higher_is_better) schedule_.minimize();
  const int world = run.shard().world;
  const int micro_batch = (micro_batch_size(recipe.train) + world - 1) / world;  // of this process
  StepOptions options = step_options(recipe, micro_batch);
  if (recipe.distributed.sync_bn) options.synced_world = world;
  step_ = std::make_unique<TrainStep>(*parts_.model, *parts_.task, *parts_.optimizer, options,
                                      run.ledger);
  if (!recipe.train.compiled.empty())
    step_->use_compiled(std::make_unique<CompiledStep>(run.env, recipe, *parts_.model, world));
  if (recipe.pipeline.any()) input.feeder().use_pipeline(pipeline_setup());
}

Learner::~Learner() {
  input_.feeder().drop_pipeline();
}

// Autocast, like the absence of gradients, is each thread's own.
PipelineSetup Learner::pipeline_setup() {
  PipelineSetup setup{run_.recipe.pipeline};
  setup.before = run_.options.before_stage;
  if (auto encoder = parts_.model->facets().encoder)
    setup.encode = [this, encode = std::move(encoder->encode)](const at::Tensor& images) {
      const c10::NoGradGuard no_grad;
      AutocastScope autocast(run_.recipe.precision.mode, images.device().type());
      return encode(images);
    };
  return setup;
}

void Learner::prepare() {
  const bool some_only = loaded_ && !run_.recipe.model.weights_match.empty();
  const ModelFacets facets = parts_.model->facets();
  if (facets.wanted_images == 0 || (loaded_ && !some_only) || !run_.is_first()) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  if (some_only)
    for (const auto& tensors : {parts_.model->parameters(), parts_.model->buffers()})
      for (const auto& [name, tensor] : tensors)
        if (std::ranges::find(loaded_->taken, name) != loaded_->taken.end())
          kept.emplace_back(tensor.detach(), tensor.detach().clone());
  facets.prepare(input_.first_images(facets.wanted_images));
  const c10::NoGradGuard no_grad;
  for (const auto& [tensor, value] : kept) tensor.copy_(value);
}

// An infinite buffer may be a mask.
void Learner::require_finite() const {
  std::string name = first_non_finite(parts_.model->parameters());
  for (const auto& [buffer, tensor] : parts_.model->buffers())
    if (name.empty() && at::isnan(tensor).any().item<bool>()) name = buffer;
  if (name.empty()) return;
  const ModelOptions& model = run_.recipe.model;
  const auto& resume = run_.options.resume;
  const bool from_file = !model.weights.empty() || !model.file.empty();
  fail(ErrorKind::kRun, name + " is not finite before the first step",
       resume      ? *resume
       : from_file ? (model.weights.empty() ? model.file : model.weights)
                   : "model.name",
       resume      ? "Resume from an older checkpoint, or start a new run"
       : from_file ? "Use weights without NaN or infinity"
                   : "Correct the model's weight initialization");
}

void Learner::join() {
  Group& group = *run_.group;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model_state(*parts_.model)) tensors.push_back(tensor.detach());
  group.broadcast(tensors);
  buffers_ = std::make_unique<RankBuffers>(group, *parts_.model);
  reducer_ =
      std::make_unique<GradientReducer>(group, parts_.model->parameters(), run_.recipe.distributed);
  step_->use_reducer(*reducer_);
  if (run_.recipe.distributed.sync_bn)
    synced_ = std::make_unique<SyncBatchNorm>(*parts_.model, group);
  if (!run_.options.resume && group.rank() > 0)
    at::manual_seed(seed_of_rank(run_.recipe.seed, group.rank(), 0));
}

std::string Learner::plan_graph() {
  if (run_.recipe.train.graph == GraphMode::kOff) return "";
  const auto& make = run_.options.make_graph;
  if (!make) why_not_graphed_ = why_no_graph_on(run_.device);
  if (why_not_graphed_.empty()) why_not_graphed_ = why_no_graph(run_.recipe, run_.shard().world);
  if (why_not_graphed_.empty() && input_.data().length(0) > 0)
    why_not_graphed_ = "the samples are of varying length, and so are batches";
  if (!why_not_graphed_.empty()) return why_not_graphed_;
  GraphSetup setup;
  setup.batch = run_.recipe.train.batch;
  setup.make = make ? make : [this] { return make_cuda_graph(run_.device); };
  setup.changes_size = !run_.recipe.augment.size_changes.empty();
  setup.finish = [this](DeviceBatch& batch) { input_.feeder().finish(batch); };
  graphed_ = std::make_unique<GraphedStep>(*step_, *parts_.optimizer, run_.device, run_.ledger,
                                           std::move(setup));
  input_.feeder().leave_unfinished(true);
  return "";
}

std::string Learner::graph_line() const {
  if (!graphed_) return why_not_graphed_.empty() ? "" : "not used: " + why_not_graphed_;
  const std::string count =
      fmt::format("{} of {} steps replayed", graphed_->replayed(), graphed_->steps());
  return graphed_->failure().empty() ? count
                                     : count + ", then the eager step: " + graphed_->failure();
}

std::string Learner::weights_line() const {
  if (!loaded_) return "";
  std::string text = fmt::format("model.weights: {} tensors of {}", loaded_->taken.size(),
                                 run_.recipe.model.weights);
  if (loaded_->averaged)
    text += ", the averaged ones, as of eval and export (export --plain writes the others)";
  if (!loaded_->fresh.empty())
    text += fmt::format("; {} are initialised randomly", fmt::join(loaded_->fresh, ", "));
  return text;
}

void Learner::set_switches() {
  const int threads = run_.recipe.train.threads;
  if (at::get_num_threads() != threads) switches_.set({.threads = threads});
  step_->set_switches();
}

void Learner::begin() {
  parts_.model->set_training(true);
  if (parts_.lookahead) parts_.lookahead->begin();
}

void Learner::set_rates(int64_t index) {
  const auto& own = run_.options.schedule;
  lr_ = run_.recipe.optimizer.lr * (own ? own(index) : schedule_.factor(index));
  if (const auto momentum = schedule_.momentum(index)) parts_.optimizer->set_momentum(*momentum);
}

void Learner::run(DeviceBatch& batch, RunningMetrics& metrics) {
  const StreamClock::Work busy(run_.streams.get(), kStepStream);
  if (graphed_)
    graphed_->run(batch, lr_, metrics);
  else
    step_->run(batch, lr_, metrics);
}

void Learner::keep_buffers(bool written_by_any) {
  if (written_by_any) buffers_->set_written(true);
  buffers_->after_step();
}

void Learner::update_averages(int64_t index, int64_t total_steps) {
  if (parts_.lookahead) {
    Ledger::Scope scope(run_.ledger, Phase::kOptimizer);
    parts_.lookahead->update(index + 1, total_steps);
  }
  update_average(index + 1, total_steps, /*ends_epoch=*/false);
}

void Learner::end_epoch(int64_t step, int64_t total_steps) {
  update_average(step, total_steps, /*ends_epoch=*/true);
}

void Learner::update_average(int64_t step, int64_t total_steps, bool ends_epoch) {
  if (!parts_.average || !parts_.average->is_due(step, total_steps, ends_epoch)) return;
  Ledger::Scope scope(run_.ledger, Phase::kOptimizer);
  if (parts_.average->has_buffers()) broadcast_buffers();
  parts_.average->update();
}

void Learner::keep_average() {
  if (parts_.average) parts_.average->keep();
}

void Learner::broadcast_buffers() {
  if (!run_.group) return;
  Ledger::Scope scope(run_.ledger, Phase::kReduce);
  buffers_->take_all();
}

void Learner::visit(StateVisitor& visitor) {
  const std::string& path = visitor.path;
  visitor.tensors(
      &Checkpoint::model, [&] { return model_state(*parts_.model); },
      [&](const auto& tensors) { load_into(*parts_.model, tensors, path); });
  visitor.tensors(  // of a sharded optimizer collective
      &Checkpoint::optimizer, [&] { return parts_.optimizer->state(); },
      [&](const auto& tensors) { parts_.optimizer->load_state(tensors); });
  visitor.progress_tensors(
      &Checkpoint::scaler, [&] { return step_->scaler_state(); },
      [&](const auto& tensors) { step_->load_scaler_state(tensors); });
  visitor.progress_tensors(
      &Checkpoint::schedule, [&] { return schedule_.state(); },
      [&](const auto& tensors) { schedule_.load_state(tensors); });
  if (parts_.average)
    visitor.tensors(
        &Checkpoint::average, [&] { return parts_.average->state(); },
        [&](const auto& tensors) { parts_.average->load_state(tensors, path); });
  if (parts_.lookahead)
    visitor.tensors(
        &Checkpoint::lookahead, [&] { return parts_.lookahead->state(); },
        [&](const auto& tensors) { parts_.lookahead->load_state(tensors, path); });
  visitor.progress_tensors(
      &Checkpoint::random, [&] { return random_states(run_.group, run_.device); },
      [&](const auto& tensors) {
        load_random_states(tensors, run_.group, run_.device, run_.recipe.seed,
                           visitor.checkpoint.position.step);
      });
}

}  // namespace saturate
