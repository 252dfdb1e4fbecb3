// What a trainer does together with the other processes of its run.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <sstream>

#include "run/trainer_state.h"

namespace saturate {
namespace {

// "section.key = value", a line each.
std::string with_full_keys(const std::string& toml) {
  std::istringstream lines(toml);
  std::string text, section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('['))
      section = line.substr(1, line.size() - 2) + ".";
    else if (!line.empty())
      text += section + line + "\n";
  }
  return text;
}

// What ranks may have of their own in a recipe: what depends on their machine, and what they show.
// Sums of metrics go out every watch.every steps.
std::string common_recipe(Recipe recipe) {
  recipe.data.threads = recipe.train.threads = 1;
  recipe.data.nice = 0;
  recipe.data.source.clear();  // the sources are compared by what is in them
  recipe.data.eval_source.clear();
  recipe.data.stage = {};
  recipe.data.cache = {};
  WatchOptions watch;
  watch.every = recipe.watch.every;
  recipe.watch = watch;
  return with_full_keys(to_toml(recipe));
}

std::string describe(const Dataset& data) {
  std::string text = fmt::format("{} samples\n", data.size());
  for (const auto& name : data.classes()) text += "class " + name + "\n";
  return text;
}

std::string describe(Model& model) {
  std::string text;
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& [name, tensor] : tensors)
      text += fmt::format("{} [{}]{}\n", name, fmt::join(tensor.sizes(), ", "),
                          tensor.requires_grad() ? "" : " frozen");
  return text;
}

// Another for each rank, and after each resume: masks of dropout are not to be alike.
uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step) {
  return seed + uint64_t(rank) * 0x9E3779B97F4A7C15u + uint64_t(step);
}

}  // namespace

Trainer::State::~State() = default;

Shard Trainer::State::shard() const {
  if (!group) return {};
  return {group->rank(), group->world(), recipe.distributed.uneven};
}

void Trainer::State::require_same_run() {
  group->require_same("recipe", common_recipe(recipe));
  group->require_same("data", describe(*data));
  group->require_same("evaluation data",
                      evaluator ? fmt::format("{} samples", evaluator->size()) : "");
  group->require_same("model", describe(*model));
  group->require_same(
      "checkpoint",
      fmt::format("step {}, batch {} of epoch {}\nthe evaluation of step {}\nbest step {}",
                  position.step, position.batch, position.epoch, evaluated_step().value_or(-1),
                  stopping.state().best_step));
  group->require_same("run", options.save ? "checkpoints" : "no checkpoints");
}

void Trainer::State::join_group() {
  require_same_run();
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model_state(*model)) tensors.push_back(tensor.detach());
  group->broadcast(tensors);
  buffers = std::make_unique<RankBuffers>(*group, *model);
  reducer = std::make_unique<GradientReducer>(*group, model->parameters(), recipe.distributed);
  step->use_reducer(*reducer);
  if (recipe.distributed.sync_bn) synced = std::make_unique<SyncBatchNorm>(*group);
  if (!options.resume && group->rank() > 0)
    at::manual_seed(seed_of_rank(recipe.seed, group->rank(), 0));
}

bool Trainer::State::any(bool own) {
  if (!group) return own;
  Ledger::Scope scope(ledger, Phase::kReduce);
  return group->any(own);
}

bool Trainer::State::first_says(bool own) {
  return any(is_first() && own);
}

// A step of all processes. The all-reduce of their votes begins before it and ends after it.
void Trainer::State::step_together(DeviceBatch& batch) {
  {
    Ledger::Scope scope(ledger, Phase::kReduce);
    buffers->before_step();
    agreement.begin(votes());
  }
  run_step(batch);
  Ledger::Scope scope(ledger, Phase::kReduce);
  agreed = agreement.end();
  if (agreed.buffers) buffers->set_written(true);
  buffers->after_step();
}

Votes Trainer::State::votes() {
  const double minutes = double(env.now_ns() - begin_ns) / 60e9;
  Votes own;
  own.stop = options.should_stop();
  own.time_is_up = recipe.train.max_minutes > 0 && minutes >= recipe.train.max_minutes;
  own.save = group && is_first() && save_due;
  own.buffers = buffers && buffers->written();
  return own;
}

// Of several processes rank 0 decides, which knows the clock and the disk; the others ask only
// where the position, or a vote of rank 0, says that it may want to.
bool Trainer::State::agree_to_save() {
  const bool own = best_unsaved || save_due;
  if (!group) return own;
  const CheckpointOptions& when = recipe.checkpoint;
  const bool may_be_due = best_unsaved || agreed.save ||
                          (at_epoch_end() && is_multiple(position.epoch, when.every)) ||
                          is_multiple(position.step, when.every_steps);
  return may_be_due && first_says(own && (best_unsaved || !writer.busy()));
}

void Trainer::State::take_buffers() {
  if (!group) return;
  Ledger::Scope scope(ledger, Phase::kReduce);
  buffers->take_all();
}

Metrics Trainer::State::over_ranks(const Metrics& own) {
  if (!group) return own;
  const at::Tensor sums = at::empty({5}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  const double count = double(own.samples - own.overflowed);
  sum[0] = count > 0 ? own.loss * count : 0;
  sum[1] = count > 0 ? own.accuracy * count : 0;
  sum[2] = count > 0 ? own.accuracy5.value_or(0) * count : 0;
  sum[3] = count;
  sum[4] = double(own.overflowed);
  {
    Ledger::Scope scope(ledger, Phase::kReduce);
    group->sum(sums);
  }
  Metrics all;
  all.overflowed = int64_t(sum[4]);
  all.samples = int64_t(sum[3]) + all.overflowed;
  if (all.samples == 0) return all;
  all.loss = sum[0] / sum[3];
  all.accuracy = sum[1] / sum[3];
  if (recipe.model.classes > 5) all.accuracy5 = sum[2] / sum[3];
  return all;
}

// Rank 0's under the device's own name, as a run of one process has it.
std::vector<NamedTensor> Trainer::State::random_states() {
  std::vector<NamedTensor> states;
  const auto add = [&](const std::string& name, const at::Device& of) {
    const at::Tensor own = at::globalContext().defaultGenerator(of).get_state();
    const at::Tensor all = group ? group->gather(own) : own.unsqueeze(0);
    for (int64_t rank = 0; rank < all.size(0); ++rank)
      states.push_back({rank == 0 ? name : fmt::format("{}.{}", name, rank), all[rank].clone()});
  };
  add("cpu", at::kCPU);
  if (device.is_cuda()) add("cuda", device);
  return states;
}

void Trainer::State::load_random_states(const std::vector<NamedTensor>& states) {
  const int rank = group ? group->rank() : 0;
  // Of a rank that the saved run did not have.
  if (rank > 0) at::manual_seed(seed_of_rank(recipe.seed, rank, position.step));
  const std::string suffix = rank == 0 ? "" : fmt::format(".{}", rank);
  for (const at::Device& from : {at::Device(at::kCPU), device})
    for (const auto& [name, state] : states)
      if (name == (from.is_cuda() ? "cuda" : "cpu") + suffix) {
        at::Generator generator = at::globalContext().defaultGenerator(from);
        generator.set_state(state);
      }
}

}  // namespace saturate
