// A run's evaluations, and what follows from them: the best weights, and an early stop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/recorder.h"
#include "saturate/early_stopping.h"
#include "saturate/evaluator.h"
#include "task/answers.h"

namespace saturate {

class RunEvaluation {
 public:
  // Opens data.eval_source, if there is one. All must outlive this.
  RunEvaluation(RunContext& run, RunInput& input, Learner& learner, Recorder& recorder);

  // Whether there is a source to evaluate on.
  bool exists() const { return evaluator_ != nullptr; }
  // Images; 0 without a source.
  int64_t images() const { return evaluator_ ? int64_t(evaluator_->size()) : 0; }
  // That of the source: see Dataset.
  std::string warning() const { return evaluator_ ? evaluator_->warning() : ""; }
  bool is_due(const RunPosition& position) const;
  // Evaluates, unless that was done at this step. False where it was given up: then all processes
  // stop before another step, and a resumed run makes up for it. `counts`: for what listens to
  // evaluations, which are the same ones in a run that nothing cut short.
  bool run(const RunPosition& position, bool counts = true);
  // Seconds that a whole evaluation takes, by one of `seconds` at most, of which nothing is kept.
  double time(double seconds);

  // Takes a training metric where that is what train.monitor watches.
  void observe_training(const Metrics& metrics, int64_t step);
  // Whether a value since the last call was the best so far.
  bool take_new_best() { return std::exchange(new_best_, false); }
  // Whether any value was observed since the last call, which a checkpoint is to hold.
  bool take_changed() { return std::exchange(changed_, false); }
  bool should_stop() const { return stopping_.should_stop(); }
  const EarlyStopping::State& best() const { return stopping_.state(); }
  // The step whose weights the run is to end with, where those are others than it has.
  std::optional<int64_t> best_to_restore(int64_t step) const;

  const std::optional<Evaluation>& last() const { return last_; }
  bool is_done_at(int64_t step) const { return last_ && last_->step == step; }

  void visit(StateVisitor& visitor);
  // After visit() of a resumed run: a best value, and what "plateau" compares with, are of one
  // metric over the same images; where they are not, they begin anew, each with a line that says
  // so. `saved`: the recipe that the checkpoint was written by.
  std::vector<std::string> compare_anew(const Checkpoint& checkpoint, const Recipe& saved);

 private:
  std::optional<Metrics> evaluate(const RunPosition& position, const char* title);
  void observe(const Metrics& metrics, int64_t step);
  void write_classes(const Metrics& found, int64_t step);
  at::Tensor all_answers();

  RunContext& run_;
  RunInput& input_;
  Learner& learner_;
  Recorder& recorder_;
  const std::unique_ptr<Evaluator> evaluator_;  // null without a source
  Answers answers_;                             // of the last evaluation, this process's part
  std::optional<Evaluation> last_;
  EarlyStopping stopping_;
  bool new_best_ = false, changed_ = false;
  size_t warned_ = 0;  // skipped samples already named
};

}  // namespace saturate
