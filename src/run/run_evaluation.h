// A run's evaluations.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/recorder.h"
#include "saturate/early_stopping.h"
#include "saturate/evaluator.h"
#include "task/class_counts.h"

namespace saturate {

// The best value of train.monitor so far, and an early stop. Its values are the same on all ranks,
// which therefore stop together without a vote. A resumed run may stop by its checkpoint's state,
// before any event.
class WatchedMetric : public Observer {
 public:
  // REQUIRES: train.monitor is resolved, to a metric of `task` or the loss.
  WatchedMetric(const TrainOptions& options, const Task& task);

  void after_epoch(const EpochEvent& event, ObserverContext&) override;
  void after_evaluation(const EvaluationEvent& event, ObserverContext&) override;

  // Whether a value since the last call was the best so far.
  bool take_new_best() { return std::exchange(new_best_, false); }
  // Whether there was any value since the last call.
  bool take_changed() { return std::exchange(changed_, false); }
  bool should_stop() const { return stopping_.should_stop(); }
  bool higher_is_better() const { return metric_.higher_is_better; }
  const EarlyStopping::State& best() const { return stopping_.state(); }

  // Forgets all values; `first`, after `step` steps, counts as the first if it is given, and then
  // as the best so far.
  void restart(const Metrics* first, int64_t step);
  void visit(StateVisitor& visitor);

 private:
  void observe(const Metrics& metrics, int64_t step);
  double value_in(const Metrics& metrics) const;

  const std::string monitor_;
  const MetricName metric_;  // that it names
  EarlyStopping stopping_;
  bool new_best_ = false, changed_ = false;
};

class RunEvaluation {
 public:
  // Opens data.eval_source, if there is one. All must outlive this.
  RunEvaluation(RunContext& run, RunInput& input, Learner& learner, Recorder& recorder);

  // Whether there is a source to evaluate on.
  bool exists() const { return evaluator_ != nullptr; }
  // Images; 0 without a source.
  int64_t images() const { return evaluator_ ? int64_t(evaluator_->size()) : 0; }
  // The source's: see Dataset.
  std::string warning() const { return evaluator_ ? evaluator_->warning() : ""; }
  bool is_due(const RunPosition& position) const;
  // Evaluates, unless that was done at this step. False if it was cancelled: then all ranks stop
  // before another step, and a resumed run evaluates first. `counts`: see EvaluationEvent.
  bool run(const RunPosition& position, bool counts);
  // Waits for the reads of an evaluation that was cancelled.
  void stop() {
    if (evaluator_) evaluator_->stop();
  }
  // An estimate of the seconds of an evaluation: from one that is cancelled after `seconds`, and
  // has no other effect.
  double time(double seconds);

  // Whether there was an evaluation since the last call, which a checkpoint is to hold.
  bool take_changed() { return std::exchange(changed_, false); }
  WatchedMetric& watched() const { return *watched_; }
  const EarlyStopping::State& best() const { return watched_->best(); }
  // The step of the best weights, if the run restores these.
  std::optional<int64_t> wanted_best() const;
  // The step whose weights the run is to end with; empty if it has them already.
  std::optional<int64_t> best_to_restore(int64_t step) const;

  const std::optional<Evaluation>& last() const { return last_; }
  bool is_done_at(int64_t step) const { return last_ && last_->step == step; }

  void visit(StateVisitor& visitor);
  // After visit() of a resumed run: a best value, and what "plateau" compares with, are of one
  // metric over the same images. Resets each that is not, and returns a line for it. `saved`: the
  // recipe of the run that wrote the checkpoint.
  std::vector<std::string> reset_if_changed(const Checkpoint& checkpoint, const Recipe& saved);
  // After visit() of a run resumed at `step`: the best value so far is that of its last evaluation,
  // if that is of this step.
  void forget_best(int64_t step);

 private:
  bool classifies() const;
  std::optional<Metrics> evaluate_own(const EvaluationObserver& observer);
  std::optional<Metrics> evaluate(const RunPosition& position, const char* title);
  void write_classes(const Metrics& found, int64_t step);
  at::Tensor all_answers();
  at::Tensor all_kept_rows();

  RunContext& run_;
  RunInput& input_;
  Learner& learner_;
  Recorder& recorder_;
  const std::unique_ptr<Evaluator> evaluator_;  // null without a source
  Answers answers_;                             // of this rank's images, in the last evaluation
  KeptOutputs kept_;                            // likewise, of several processes
  std::optional<Evaluation> last_;
  const std::shared_ptr<WatchedMetric> watched_;
  bool changed_ = false;
  size_t warned_ = 0;  // skipped samples already named
};

}  // namespace saturate
