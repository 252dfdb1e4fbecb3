// The learner: model, optimizer and schedule, and the step over a batch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "run/rank_buffers.h"
#include "run/run_input.h"
#include "run/training_parts.h"
#include "saturate/gradient_reducer.h"
#include "saturate/schedule.h"
#include "saturate/sync_batch_norm.h"
#include "saturate/weights.h"
#include "step/graphed_step.h"
#include "step/switches.h"

namespace saturate {

class Learner {
 public:
  // Draws the weights, or takes those of model.weights; a resumed run's come by visit(). Resolves
  // train.checkpoint_segments of run.recipe. Both must outlive this.
  Learner(RunContext& run, RunInput& input, int64_t total_steps);
  // Ends the feeder's pipeline, whose stages compute with the model (pipeline.encoder).
  ~Learner();
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  Model& model() { return *parts_.model; }
  const Task& task() const { return *parts_.task; }
  // Null without train.ema, and before its first update.
  WeightAverage* average() {
    return parts_.average && !parts_.average->empty() ? parts_.average.get() : nullptr;
  }
  Schedule& schedule() { return schedule_; }
  GradientReducer* reducer() { return reducer_.get(); }  // null in one process
  const TrainStep& step() const { return *step_; }
  const GraphedStep* graphed() const { return graphed_.get(); }  // null if there is none
  double lr() const { return lr_; }
  // Bytes of a checkpoint's tensors. Collective.
  int64_t checkpoint_bytes() { return bytes_of_checkpoint(parts_); }

  // Before the first step of a new run: passes the model the first training images that it needs
  // for initialisation. Weights from a file are not changed.
  void prepare();
  // Else the first loss would be blamed on the learning rate. Fails with kRun.
  void require_finite() const;
  // Collective: all processes take rank 0's weights, and sum gradients from here on.
  void join();
  // Captures steps as a graph from now on if train.graph is set and capture is possible; else
  // returns the reason, as half a sentence.
  std::string plan_graph();
  // The outcome of train.graph in one line; empty if it is off.
  std::string graph_line() const;
  // Which weights are not those of model.weights' file; empty if that is not set.
  std::string weights_line() const;

  // The process's switches, which steps of other trainers may have changed.
  void set_switches();
  // Called in each step with the gradients complete.
  void observe_gradients(std::function<void()> observer) {
    step_->observe_gradients(std::move(observer));
  }
  at::Tensor gradient_of(const at::Tensor& parameter) const {
    return parts_.optimizer->gradient_of(parameter);
  }
  void begin();
  // A step, the run's number `index` from 0: set_rates(), then with other processes
  // exchange_buffers(), run(), keep_buffers(), and at last update_averages().
  void set_rates(int64_t index);
  void exchange_buffers() { buffers_->before_step(); }
  void run(DeviceBatch& batch, RunningMetrics& metrics);
  void keep_buffers(bool written_by_any);
  bool has_written_buffers() const { return buffers_ && buffers_->written(); }
  void update_averages(int64_t index, int64_t total_steps);
  // After `step` steps, with which an epoch or the run ends. Collective.
  void end_epoch(int64_t step, int64_t total_steps);
  // After the last step: the model ends with the averaged weights, if there are any.
  void keep_average();
  // Collective: all buffers are rank 0's, before they are evaluated or saved.
  void broadcast_buffers();

  void visit(StateVisitor& visitor);

 private:
  PipelineSetup pipeline_setup();
  void update_average(int64_t step, int64_t total_steps, bool ends_epoch);

  RunContext& run_;
  RunInput& input_;
  SwitchesScope switches_;  // first: the number of threads before the run is restored last
  std::optional<LoadedWeights> loaded_;  // where model.weights were
  TrainingParts parts_;
  Schedule schedule_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<GraphedStep> graphed_;
  std::string why_not_graphed_;
  std::unique_ptr<GradientReducer> reducer_;  // of several processes
  std::unique_ptr<SyncBatchNorm> synced_;     // distributed.sync_bn
  std::unique_ptr<RankBuffers> buffers_;      // of several processes
  double lr_ = 0;
};

}  // namespace saturate
