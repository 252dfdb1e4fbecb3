// train.monitor: its best value so far, and an early stop.
#pragma once

#include <optional>
#include <utility>

#include "run/state_visitor.h"
#include "saturate/data/recipe.h"
#include "saturate/early_stopping.h"
#include "saturate/observer.h"

namespace saturate {

// Its values are the same on all ranks, which therefore stop together without a vote. A resumed run
// may stop by its checkpoint's state, before any event.
class WatchedMetric : public Observer {
 public:
  explicit WatchedMetric(const TrainOptions& options)
      : monitor_(options.monitor), stopping_(options) {}

  void after_epoch(const EpochEvent& event, ObserverContext&) override;
  void after_evaluation(const EvaluationEvent& event, ObserverContext&) override;

  // Whether a value since the last call was the best so far.
  bool take_new_best() { return std::exchange(new_best_, false); }
  // Whether there was any value since the last call.
  bool take_changed() { return std::exchange(changed_, false); }
  bool should_stop() const { return stopping_.should_stop(); }
  const EarlyStopping::State& best() const { return stopping_.state(); }

  // Forgets all values; `first`, after `step` steps, counts as the first if it is given.
  void restart(const Metrics* first, int64_t step);
  void visit(StateVisitor& visitor);

 private:
  void observe(const Metrics& metrics, int64_t step);

  const Monitor monitor_;
  EarlyStopping stopping_;
  bool new_best_ = false, changed_ = false;
};

}  // namespace saturate
