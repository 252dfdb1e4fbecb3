// Evaluations of a run, and what follows from them.
#include <fmt/format.h>

#include <algorithm>

#include "run/trainer_state.h"

namespace saturate {

double monitored_value(Monitor monitor, const Metrics& metrics) {
  switch (monitor) {
    case Monitor::kEvalLoss:
    case Monitor::kTrainLoss:
      return metrics.loss;
    case Monitor::kEvalAccuracy5:
      return metrics.accuracy5.value_or(1);  // with five classes or fewer
    case Monitor::kEvalIou:
      return metrics.mean_iou().value_or(0);
    case Monitor::kEvalAccuracy:
    case Monitor::kTrainAccuracy:
      break;
  }
  return metrics.accuracy;
}

// Empty when interrupted; then all processes stop before another step, and a resumed run makes up
// for it.
std::optional<Metrics> Trainer::State::evaluate(const char* title) {
  size_t done = 0;
  answers.clear();
  if (gallery) gallery->begin_evaluation();
  const auto found =
      evaluator->run(*model, [&](const DeviceBatch& batch, const at::Tensor& logits) {
        done += size_t(batch.count());
        answers.add(logits, batch.labels);
        if (gallery) gallery->see(batch, logits);
        log->show(position, fmt::format("{} {}/{}", title, done, evaluator->size()));
        return !options.should_stop();
      });
  log->warn_of_skipped(evaluator->skipped(), warned_eval);
  if (!any(!found)) return over_ranks(*found);
  agreed.stop = true;
  return std::nullopt;
}

// `counts`: for what listens to evaluations, which are the same ones in a run that nothing cut.
void Trainer::State::evaluate_now(bool counts) {
  if (!evaluator || evaluated_step() == position.step) return;
  Ledger::Scope scope(ledger, Phase::kEvaluation);
  const double begin = ledger.times().total();
  if (streams) streams->leave_out();
  feeder.settle();  // what runs beside this would see the average's weights
  take_buffers();
  Evaluation now;
  now.step = position.step;
  const auto plain = evaluate("evaluating");
  if (!plain) return;
  now.metrics = *plain;
  if (average) {
    const WeightAverage::Scope averaged(&*average);
    const auto found = evaluate("evaluating the average");
    if (!found) return;
    now.metrics = *found;
    now.plain = plain;
  }
  log->evaluation(position, now, ledger.times().total() - begin);
  write_mistakes();
  write_classes(now.metrics);
  evaluation = now;
  unsaved = true;
  if (!counts) return;
  schedule->observe(now.metrics.loss, now.metrics.accuracy);
  if (!is_training_metric(recipe.train.monitor)) observe(now.metrics);
}

// With an average both it and the plain weights are evaluated.
double Trainer::State::time_evaluation(double seconds) {
  if (!evaluator) return 0;
  set_switches();
  Ledger::Scope scope(ledger, Phase::kEvaluation);
  feeder.settle();
  const double begin = ledger.times()[Phase::kEvaluation];
  const auto passed = [&] { return ledger.times()[Phase::kEvaluation] - begin; };
  size_t done = 0;
  evaluator->run(*model, [&](const DeviceBatch& batch, const at::Tensor&) {
    done += size_t(batch.count());
    return passed() < seconds;
  });
  const double whole = double(evaluator->size()) / double(std::max<size_t>(1, done));
  return passed() * std::max(1.0, whole) * (average ? 2 : 1);
}

void Trainer::State::observe(const Metrics& metrics) {
  if (stopping.observe(monitored_value(recipe.train.monitor, metrics), position.step)) {
    best_unsaved = recipe.checkpoint.keep_best;
    best_lost = false;
  }
  unsaved = true;
}

}  // namespace saturate
