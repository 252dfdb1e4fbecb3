#include "run/run_evaluation.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cancel.h"
#include "record/class_results.h"
#include "saturate/data/error.h"
#include "saturate/group.h"

namespace saturate {
namespace {

std::unique_ptr<Evaluator> open_evaluator(RunContext& run, const RunInput& input) {
  const Recipe& recipe = run.recipe;
  if (recipe.data.eval_source.empty()) return nullptr;
  const Shard shard = run.shard();
  return std::make_unique<Evaluator>(
      run.env, recipe, recipe.data.eval_source, input.data().classes(), run.device,
      /*names=*/recipe.watch.samples > 0, Shard{shard.rank, shard.world, Uneven::kJoin},
      run.options.eval_dataset, batch_fields(input.data(), recipe.augment));
}

// NAME of "eval_NAME" and "train_NAME".
std::string metric_of(const std::string& monitor) {
  return monitor.substr(monitor.find('_') + 1);
}

MetricName named_metric(const Task& task, const std::string& name) {
  for (MetricName& each : task.metric_names())
    if (each.name == name) return each;
  return {.name = "loss", .higher_is_better = false};
}

// As r2 of one sample is. With a loss that is not finite the run has diverged instead.
bool is_unknown(double value, const Metrics& metrics) {
  return std::isnan(value) && std::isfinite(metrics.loss);
}

}  // namespace

WatchedMetric::WatchedMetric(const TrainOptions& options, const Task& task)
    : monitor_(options.monitor),
      metric_(named_metric(task, metric_of(options.monitor))),
      stopping_(options, metric_.higher_is_better) {}

// Without a labelled pixel, or a step that did not overflow in fp16, an epoch has no value; the
// loss scale may recover.
void WatchedMetric::after_epoch(const EpochEvent& event, ObserverContext&) {
  if (is_training_metric(monitor_) && event.metrics.weight() > 0)
    observe(event.metrics, event.position.step);
}

void WatchedMetric::after_evaluation(const EvaluationEvent& event, ObserverContext&) {
  // Without samples, or a labelled pixel, there is no value.
  if (event.counts && event.found.metrics.weight() > 0 && !is_training_metric(monitor_))
    observe(event.found.metrics, event.position.step);
}

double WatchedMetric::value_in(const Metrics& metrics) const {
  if (metric_.name == "loss") return metrics.loss;
  return metrics.value(metric_.name).value_or(metric_.without);
}

void WatchedMetric::observe(const Metrics& metrics, int64_t step) {
  const double value = value_in(metrics);
  if (is_unknown(value, metrics)) return;
  new_best_ = stopping_.observe(value, step) || new_best_;
  changed_ = true;
}

void WatchedMetric::restart(const Metrics* first, int64_t step) {
  stopping_.load({});
  changed_ = true;
  new_best_ =
      first && !is_unknown(value_in(*first), *first) && stopping_.observe(value_in(*first), step);
}

void WatchedMetric::visit(StateVisitor& visitor) {
  EarlyStopping::State best = stopping_.state();
  visitor.value(&Checkpoint::best, best);
  stopping_.load(best);
}

RunEvaluation::RunEvaluation(RunContext& run, RunInput& input, Learner& learner, Recorder& recorder)
    : run_(run),
      input_(input),
      learner_(learner),
      recorder_(recorder),
      evaluator_(open_evaluator(run, input)),
      watched_(std::make_shared<WatchedMetric>(run.recipe.train, learner.task())) {
  recorder.add_observer(watched_);
}

bool RunEvaluation::is_due(const RunPosition& position) const {
  return is_due_at(position, run_.recipe.train.eval_every, run_.recipe.train.eval_every_steps);
}

// Evaluates this rank's images; empty if that was cancelled.
std::optional<Metrics> RunEvaluation::evaluate_own(const EvaluationObserver& observer) {
  // A signal ends it also while storage does not deliver, so that the epoch before it is saved.
  const CancelScope scope(run_.options.should_stop);
  try {
    return evaluator_->run(learner_.model(), learner_.task(), observer);
  } catch (const Error&) {
    if (!run_.options.should_stop()) throw;
    return std::nullopt;
  }
}

// The same for all ranks, whose metrics are all-reduced; empty if any rank cancelled.
std::optional<Metrics> RunEvaluation::evaluate(const RunPosition& position, const char* title) {
  size_t done = 0;
  answers_.clear();
  kept_.clear();
  const Task& task = learner_.task();
  const bool keeps = run_.group && task.keeps_outputs();  // one process's evaluator does it itself
  SampleGallery* const gallery = recorder_.gallery();
  if (gallery) gallery->begin_evaluation();
  RunLog& log = recorder_.log();
  const auto found = evaluate_own([&](const DeviceBatch& batch, const at::Tensor& logits) {
    done += size_t(batch.count());
    if (classifies()) answers_.add(logits, batch.labels);
    if (keeps) kept_.add(logits, batch.labels);
    if (gallery) gallery->see(batch, logits);
    const size_t all = std::min(evaluator_->size(), done * size_t(run_.shard().world));
    log.show(position, fmt::format("{} {}/{}", title, all, evaluator_->size()));
    return !run_.options.should_stop();
  });
  log.warn_of_skipped(evaluator_->skipped(), warned_);
  if (run_.any(!found)) return std::nullopt;
  Metrics all = all_reduce_metrics(run_, task, *found);
  all.clear_if_uncounted();
  if (!keeps) return all;
  if (const at::Tensor rows = all_kept_rows(); rows.defined()) kept_.finish(task, rows, all);
  return all;
}

bool RunEvaluation::classifies() const {
  return run_.recipe.train.task == TaskKind::kClassify && !run_.options.task;
}

bool RunEvaluation::run(const RunPosition& position, bool counts) {
  if (!evaluator_ || is_done_at(position.step)) return true;
  Ledger::Scope scope(run_.ledger, Phase::kEvaluation);
  const double begin = run_.ledger.times().total();
  if (run_.streams) run_.streams->skip_interval();
  input_.feeder().settle();  // a stage of the pipeline would use the average's weights
  learner_.broadcast_buffers();
  Evaluation now;
  now.step = position.step;
  const auto plain = evaluate(position, "evaluating");
  if (!plain) return false;
  now.metrics = *plain;
  if (learner_.average()) {
    const WeightAverage::Scope averaged(learner_.average());
    const auto found = evaluate(position, "evaluating the average");
    if (!found) return false;
    now.metrics = *found;
    now.plain = plain;
  }
  recorder_.log().evaluation({position, now, counts}, run_.ledger.times().total() - begin);
  write_classes(now.metrics, position.step);
  last_ = now;
  changed_ = true;
  const double metric = now.metrics.value(run_.recipe.schedule.metric).value_or(0);
  if (counts && now.metrics.weight() > 0 && !is_unknown(metric, now.metrics))
    learner_.schedule().observe(now.metrics.loss, metric);
  return true;
}

// With an average both it and the plain weights are evaluated.
double RunEvaluation::time(double seconds) {
  if (!evaluator_) return 0;
  learner_.set_switches();
  Ledger& ledger = run_.ledger;
  Ledger::Scope scope(ledger, Phase::kEvaluation);
  input_.feeder().settle();
  const double begin = ledger.times()[Phase::kEvaluation];
  const auto passed = [&] { return ledger.times()[Phase::kEvaluation] - begin; };
  size_t done = 0;
  evaluator_->run(learner_.model(), learner_.task(),
                  [&](const DeviceBatch& batch, const at::Tensor&) {
                    done += size_t(batch.count());
                    return passed() < seconds;
                  });
  const double own = double(evaluator_->size()) / run_.shard().world;
  const double ratio = own / double(std::max<size_t>(1, done));
  return passed() * std::max(1.0, ratio) * (learner_.average() ? 2 : 1);
}

std::optional<int64_t> RunEvaluation::wanted_best() const {
  const int64_t best_step = best().best_step;
  return restores_best(run_.recipe.train) && best_step >= 0 ? std::optional(best_step)
                                                            : std::nullopt;
}

std::optional<int64_t> RunEvaluation::best_to_restore(int64_t step) const {
  const auto wanted = wanted_best();
  return wanted == step ? std::nullopt : wanted;
}

void RunEvaluation::visit(StateVisitor& visitor) {
  visitor.value(&Checkpoint::evaluation, last_);
  watched_->visit(visitor);
  if (!visitor.restores_best()) return;
  // The best weights' own, if they were evaluated.
  const Checkpoint& restored = visitor.checkpoint;
  last_.reset();
  if (restored.evaluation && restored.evaluation->step == restored.position.step)
    last_ = restored.evaluation;
}

std::vector<std::string> RunEvaluation::reset_if_changed(const Checkpoint& checkpoint,
                                                         const Recipe& saved) {
  const Recipe& recipe = run_.recipe;
  std::vector<std::string> notes;
  const bool same_images =
      images() == 0 || checkpoint.eval_images == 0 || checkpoint.eval_images == images();
  const bool trains = is_training_metric(recipe.train.monitor);
  const bool higher = watched_->higher_is_better();
  const bool same_metric = saved.train.monitor == recipe.train.monitor &&
                           is_maximized(saved.train, higher) == is_maximized(recipe.train, higher);
  const auto why = [&](bool same, const char* key) {
    return same ? fmt::format("the evaluation has {} images, and had {}", images(),
                              checkpoint.eval_images)
                : std::string(key) + " has changed";
  };
  if (!same_metric || !(trains || same_images)) {
    const int64_t step = checkpoint.position.step;
    if (same_images)
      forget_best(step);
    else
      watched_->restart(nullptr, step);
    notes.push_back(why(same_metric, "train.monitor") + ": its best value is reset");
  }
  const bool same_plateau = saved.schedule.metric == recipe.schedule.metric;
  if (!learner_.schedule().listens() || (same_plateau && same_images)) return notes;
  learner_.schedule().forget_best();
  notes.push_back(why(same_plateau, "schedule.metric") +
                  ": the schedule compares only later evaluations, and keeps its present rate");
  return notes;
}

// The checkpoint's own evaluation counts, so that a worse one does not become the best.
void RunEvaluation::forget_best(int64_t step) {
  const bool has_one = !is_training_metric(run_.recipe.train.monitor) && is_done_at(step) &&
                       last_->metrics.weight() > 0;
  watched_->restart(has_one ? &last_->metrics : nullptr, step);
}

// The cells of all ranks, padded with -1 to one length.
at::Tensor RunEvaluation::all_answers() {
  const at::Tensor own = answers_.cells();
  if (!run_.group) return own;
  Ledger::Scope scope(run_.ledger, Phase::kReduce);
  const at::Tensor most = at::full({1}, own.size(0), at::kLong);
  run_.group->max(most);
  if (most.item<int64_t>() == 0) return own;
  const at::Tensor padded = at::full({most.item<int64_t>()}, -1, at::kLong);
  padded.narrow(0, 0, own.size(0)).copy_(own);
  return run_.group->gather(padded).flatten();
}

// The kept rows of all ranks. REQUIRES: a group.
at::Tensor RunEvaluation::all_kept_rows() {
  const at::Tensor own = kept_.rows();
  Ledger::Scope scope(run_.ledger, Phase::kReduce);
  const bool any = own.defined();
  const at::Tensor most = at::full({3}, any ? own.size(0) : 0, at::kLong);
  if (any) most[1] = own.size(1);
  most[2] = kept_.outputs();
  run_.group->max(most);
  const int64_t rows = most[0].item<int64_t>(), width = most[1].item<int64_t>();
  kept_.set_outputs(most[2].item<int64_t>());
  if (rows == 0) return {};
  const at::Tensor padded = at::zeros({rows, width + 1}, at::kDouble);  // and whether it is a row
  if (any) padded.narrow(0, 0, own.size(0)).narrow(1, 0, width).copy_(own);
  if (any) padded.narrow(0, 0, own.size(0)).select(1, width).fill_(1);
  const at::Tensor all = run_.group->gather(padded.flatten()).reshape({-1, width + 1});
  return all.index_select(0, all.select(1, width).nonzero().flatten()).narrow(1, 0, width);
}

// Writes the results by class. Collective.
void RunEvaluation::write_classes(const Metrics& found, int64_t step) {
  // A program's own task may count no pixels.
  const bool segments =
      run_.recipe.train.task == TaskKind::kSegment && !(run_.options.task && found.pixels.empty());
  if (!segments && !classifies()) return;
  const at::Tensor cells = segments ? at::Tensor() : all_answers();
  if (!run_.is_first()) return;
  const int64_t outputs = answers_.outputs() > 0 ? answers_.outputs() : run_.recipe.model.classes;
  const auto& classes = input_.class_names();
  ClassResults results =
      segments ? class_results(found.pixels, classes)
               : class_results({cells.const_data_ptr<int64_t>(), size_t(cells.numel())}, outputs,
                               classes);
  results.step = step;
  or_warn("results by class", recorder_.log().observers(), [&] {
    write_atomically(run_.env, run_.options.out + "/classes.json", class_results_json(results));
  });
}

}  // namespace saturate
