// A run's set-up before its first step: its components, its checkpoint, and its folder.
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/checksum.h"
#include "base/printable.h"
#include "recipe/option_row.h"
#include "run/same_run.h"
#include "run/setup.h"
#include "run/single_image.h"
#include "run/trainer_state.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "trace/host.h"

namespace saturate {
namespace {

int64_t steps_of_run(const Recipe& recipe, int64_t epoch_steps) {
  const double steps = std::ceil(recipe.train.epochs * double(epoch_steps) - 1e-9);
  if (steps > 0x1p53)  // above, a double does not count them one by one
    fail(ErrorKind::kUsage, "the run has more than 2^53 steps", "train.epochs", "Lower it");
  return int64_t(steps);
}

// A recipe without what may differ between ranks: what depends on the machine, and outputs.
// watch.every stays: metrics are all-reduced at these steps.
std::string common_recipe(Recipe recipe) {
  recipe.data.threads = recipe.train.threads = 1;
  recipe.data.nice = 0;
  recipe.data.source.clear();  // the sources are compared by their contents
  recipe.data.eval_source.clear();
  recipe.data.stage = {};
  recipe.data.cache = {};
  recipe.data.index = {};
  recipe.data.store = {};
  WatchOptions watch;
  watch.every = recipe.watch.every;
  recipe.watch = watch;
  return with_full_keys(to_toml(recipe));
}

// REQUIRES: samples vary in length.
int64_t shortest_length(const Dataset& data) {
  size_t shortest = data.length(0);
  for (size_t i = 1; i < data.size(); ++i) shortest = std::min(shortest, data.length(i));
  return int64_t(shortest);
}

std::string describe(const Dataset& data) {
  std::string text = fmt::format("{} samples\n", data.size());
  for (const auto& name : data.classes()) text += "class " + name + "\n";
  return text;
}

std::string describe(Model& model) {
  std::string text;
  for (const auto& [name, tensor] : model_state(model))
    text += fmt::format("{} [{}]{}\n", name, fmt::join(tensor.sizes(), ", "),
                        tensor.requires_grad() ? "" : " frozen");
  return text;
}

// Compares hashes first: the names of 100,000 objects from each of many ranks are gigabytes.
void compare_objects(Group& group, const std::vector<ObjectVersion>& objects) {
  const std::string own = text_of(objects);
  const at::Tensor hashes = group.gather(at::full({1}, int64_t(hash_text(own)), at::kLong));
  const int64_t* const all = hashes.const_data_ptr<int64_t>();
  if (std::any_of(all, all + group.world(), [&](int64_t hash) { return hash != all[0]; }))
    require_same_objects(group.texts(own));
}

// A key's value as a recipe has it.
std::string choice_text(const Recipe& recipe, std::string_view key) {
  for (const OptionRow& row : option_table())
    if (row.key == key) return std::get<std::string>(row.get(recipe));
  return "";
}

// "bf16 (chosen by auto)".
std::string chosen(const Recipe& asked, const Recipe& found, std::string_view key) {
  return choice_text(found, key) + (choice_text(asked, key) == "auto" ? " (chosen by auto)" : "");
}

std::string parameters_of(Model& model) {
  int64_t all = 0, trained = 0;
  for (const auto& [name, tensor] : model.parameters()) {
    all += tensor.numel();
    trained += tensor.requires_grad() ? tensor.numel() : 0;
  }
  return fmt::format("{} parameters", all) +
         (trained < all ? fmt::format(", {} of them trained", trained) : "");
}

}  // namespace

Trainer::State::State(Env& env, const Recipe& asked, TrainerOptions options)
    : run(env, std::move(options), asked),
      cpu_begin(cpu_seconds()),
      begin_ns(env.now_ns()),
      device_phases(make_device_phases(run.device)),
      heartbeat(start_heartbeat([this] {
        return fmt::format("step {}, in {}", steps_made.load(), phase_name(run.ledger.current()));
      })),
      opening(run.group),
      input(run),
      total_steps(steps_of_run(run.recipe, input.epoch_steps())),
      learner(run, input, total_steps),
      recorder(run, input, learner),
      evaluation(run, input, learner, recorder),
      saver(run, recorder, evaluation, [this] { return snapshot(); }) {
  opening.wait();
  const Recipe& recipe = run.recipe;
  const int replicas = 1 + int(other_devices(recipe, run.device).size());
  ModelInput fewest = model_input(run.env, recipe, batch_fields(input.data(), recipe.augment));
  if (fewest.tensor.is_sequence) fewest.tensor.shape.back() = shortest_length(input.data());
  require_no_single_image(learner.model(), recipe, input.data().size(), {run.shard(), replicas},
                          fewest, run.device);
  std::vector<std::string> notes;
  if (run.options.resume)
    notes = resume();
  else
    learner.prepare();
  learner.require_finite();
  if (run.group) {
    require_same_run();
    learner.join();
  }
  result.was_finished = run.options.resume && is_finished();
  if (run.options.resume && !result.was_finished) reset_lost_best(notes);
  if (!result.was_finished && run.options.save) saver.require_room(learner.checkpoint_bytes());
  if (!result.was_finished) open_folder(asked, std::move(notes));
  if (run.folder && !result.was_finished) run.folder->keep();
}
Trainer::State::~State() = default;

std::vector<std::string> Trainer::State::resume() {
  std::string& path = resumed_from;
  Checkpoint checkpoint = find_checkpoint(run.env, *run.options.resume, print_warning, &path);
  const Recipe& recipe = run.recipe;
  require_same_data(checkpoint, input.data(), input.objects(), recipe.data.source,
                    run.options.changed_data);
  if (!checkpoint.fields.empty() &&
      std::ranges::none_of(checkpoint.fields, &TensorField::is_volume))  // whose crop may change
    require_same_tensors(checkpoint.fields, input.data(), recipe.augment, recipe.data.source);
  const Recipe saved = parse_saved_recipe(checkpoint.recipe_toml, path);
  require_same_batches(saved, recipe, path);
  StateVisitor visitor(StateVisitor::Purpose::kResume, checkpoint, path);
  try {
    visit(visitor);
  } catch (const Error& error) {
    fail_naming_changes(error, saved, recipe);
  }
  resumed = position;
  steps_made = position.step;
  saver.resumed_from(path);
  return evaluation.reset_if_changed(checkpoint, saved);
}

// A best value is no use without its weights: no later value might beat it.
void Trainer::State::reset_lost_best(std::vector<std::string>& notes) {
  const int64_t step = evaluation.best().best_step;
  if (step < 0 || !saver.keeps_best() || saver.find_best(step)) return;
  notes.push_back(
      fmt::format("the checkpoint of the best weights, of step {}, is missing or broken beside {}: "
                  "train.monitor's best value is reset",
                  step, saver.resumed_from()));
  evaluation.forget_best(position.step);
}

void Trainer::State::require_same_run() {
  Group& group = *run.group;
  group.require_same("recipe", common_recipe(run.recipe));
  group.require_same("data", describe(input.data()));
  compare_objects(group, input.objects());
  group.require_same("evaluation data",
                     evaluation.exists() ? fmt::format("{} samples", evaluation.images()) : "");
  group.require_same("model", describe(learner.model()));
  const auto& last = evaluation.last();
  group.require_same(
      "checkpoint",
      fmt::format("step {}, batch {} of epoch {}\nthe evaluation of step {}\nbest step {}",
                  position.step, position.batch, position.epoch, last ? last->step : -1,
                  evaluation.best().best_step));
  group.require_same("run", run.options.save ? "checkpoints" : "no checkpoints");
}

// Whatever may refuse the run comes before its folder changes: a resume that is refused leaves the
// records and the branch as they are.
void Trainer::State::open_folder(const Recipe& asked, std::vector<std::string> notes) {
  const Recipe& recipe = run.recipe;
  const std::string why_no_graph = learner.plan_graph();
  recorder.start(position, total_steps);
  std::vector<TextFile> files;
  if (run.is_first())
    files = {{run.options.out + "/recipe.toml", to_toml(recipe)},
             {run.options.out + "/host.json", host_json()}};
  if (const auto left = saver.begin_branch(files); !left.empty())
    notes.push_back(
        fmt::format("from step {} on, this is a new branch of the run: {} checkpoints of the old "
                    "branch in {} are ignored unless given by path",
                    position.step, left.size(), saver.store().folder()));
  RunLog& log = recorder.log();
  LongWork beginning(run.group);  // rank 0 may write a long metrics.csv again
  log.begin(std::move(files));
  beginning.wait();
  if (asked.train.batch == kAutomatic)
    log.note(fmt::format("train.batch=auto: {} {} per step, at most {} at once", recipe.train.batch,
                         input.data().tensors().empty() ? "images" : "samples",
                         micro_batch_size(recipe.train)));
  introduce(asked);
  const std::string warning = input.data().warning(), of_evaluation = evaluation.warning();
  if (run.is_first() && run.options.save) {  // a measurement has many trainers
    if (!warning.empty()) log.warn(warning);
    if (!of_evaluation.empty() && of_evaluation != warning) log.warn(of_evaluation);
  }
  if (const std::string line = learner.weights_line(); !line.empty()) log.note(line);
  for (const std::string& note : notes) log.note(note);
  if (!why_no_graph.empty()) log.note("train.graph=auto: using eager steps: " + why_no_graph);
}

// The first lines of a run: model, data, device, steps and folder.
void Trainer::State::introduce(const Recipe& asked) {
  const Recipe& recipe = run.recipe;
  RunLog& log = recorder.log();
  const int processes = run.shard().world;
  log.note(fmt::format("model       {}, {}", recipe.model.name, parameters_of(learner.model())));
  const bool has_images = input.data().tensors().empty();
  const char* const unit = has_images ? "images" : "samples";
  const bool has_classes =
      recipe.train.task != TaskKind::kRegress && recipe.train.task != TaskKind::kMultilabel;
  const size_t classes = has_classes ? input.data().classes().size() : 0;
  log.note(fmt::format("data        {}: {} {}{}", recipe.data.source, input.data().size(), unit,
                       classes > 0 ? fmt::format(" of {} classes", classes) : ""));
  if (!has_images)
    log.note("tensors     " + tensors_text(batch_fields(input.data(), recipe.augment)));
  if (evaluation.exists())
    log.note(
        fmt::format("evaluation  {}: {} {}", recipe.data.eval_source, evaluation.images(), unit));
  log.note(fmt::format("device      {}, {} thread{}{}, precision {}",
                       chosen(asked, recipe, "train.device"), recipe.train.threads,
                       recipe.train.threads == 1 ? "" : "s",
                       processes > 1 ? fmt::format(" in each of {} processes", processes) : "",
                       chosen(asked, recipe, "precision.mode")));
  if (recipe.precision.mode == PrecisionMode::kFp16O3)
    log.warn(
        "precision.mode=fp16-o3 is for comparison: weights, statistics and the optimizer are in "
        "fp16 alone, where small updates are lost and training may diverge. To train, set fp16-o2 "
        "or bf16");
  log.note(fmt::format("steps       {} batches of {} {} an epoch, {} in {:g} epochs",
                       input.epoch_steps(), recipe.train.batch, unit, total_steps,
                       recipe.train.epochs));
  log.note(fmt::format("run folder  {}{}", run.options.out,
                       run.options.resume ? fmt::format(", from step {}", position.step) : ""));
}

}  // namespace saturate
