#include "run/watched_metric.h"

namespace saturate {
namespace {

// The metric that train.monitor names.
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

}  // namespace

// Without a step that did not overflow in fp16 an epoch has no value; the loss scale may recover.
void WatchedMetric::after_epoch(const EpochEvent& event, ObserverContext&) {
  const Metrics& metrics = event.metrics;
  if (is_training_metric(monitor_) && metrics.overflowed < metrics.samples)
    observe(metrics, event.position.step);
}

void WatchedMetric::after_evaluation(const EvaluationEvent& event, ObserverContext&) {
  if (event.counts && !is_training_metric(monitor_))
    observe(event.found.metrics, event.position.step);
}

void WatchedMetric::observe(const Metrics& metrics, int64_t step) {
  new_best_ = stopping_.observe(monitored_value(monitor_, metrics), step) || new_best_;
  changed_ = true;
}

void WatchedMetric::restart(const Metrics* first, int64_t step) {
  stopping_.load({});
  if (first) stopping_.observe(monitored_value(monitor_, *first), step);
}

void WatchedMetric::visit(StateVisitor& visitor) {
  EarlyStopping::State best = stopping_.state();
  visitor.value(&Checkpoint::best, best);
  stopping_.load(best);
}

}  // namespace saturate
