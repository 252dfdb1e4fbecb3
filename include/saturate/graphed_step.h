// The whole step as one recorded graph (train.graph):
//
//   copy the batch into the recording's own memory, and the learning rate into a scalar
//   first three times:  run the step on it, as it will be recorded
//   the fourth time:    record it: finish the batch (effects, normalisation), forward, backward,
//                       scaler, clip, optimizer; then as below
//   from then on:       replay
//   add what the step counted to the metrics
//
// Batches of another number of images, such as an epoch's last, take the ordinary step. Inputs of
// another shape are recorded anew, beside the first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/recipe.h"
#include "saturate/step_graph.h"
#include "saturate/train_step.h"

namespace saturate {

// Why the steps of a run on a GPU cannot be recorded, as half a sentence; empty where they may be.
// `processes`: that train together. What only shows when it is tried, GraphedStep tells.
std::string why_no_graph(const Recipe& recipe, int processes);

struct GraphSetup {
  int64_t batch = 0;  // images of the steps that are recorded
  std::function<std::unique_ptr<StepGraph>()> make;
  std::function<void(DeviceBatch&)> finish;  // Feeder::finish
};

// Not for concurrent use. What the constructor takes must outlive it.
class GraphedStep {
 public:
  // Steps that run before one is recorded: cuDNN's choices and the optimizer's state come with
  // them.
  static constexpr int kWarmUp = 3;
  // Shapes of inputs that are recorded; with more of them the steps are no longer.
  static constexpr size_t kMostShapes = 2;

  // REQUIRES: the optimizer can read its rate from the device; why_no_graph() is empty.
  GraphedStep(TrainStep& step, Optimizer& optimizer, const at::Device& device, Ledger& ledger,
              GraphSetup setup);
  ~GraphedStep();

  // As TrainStep::run(); may finish the batch. A step that cannot be recorded runs without, as do
  // all that follow: see given_up().
  void run(DeviceBatch& batch, double lr, RunningMetrics& metrics);

  // Why nothing is recorded any more, as half a sentence; empty where it is.
  const std::string& given_up() const { return given_up_; }
  int recorded() const { return recorded_; }      // graphs
  int64_t replayed() const { return replayed_; }  // steps
  int64_t steps() const { return steps_; }

 private:
  struct Recording;

  Recording* recording_for(const DeviceBatch& batch);
  void run_recorded(Recording& recording, const DeviceBatch& batch);
  bool record(Recording& recording, const std::function<void()>& body);
  void run_plain(DeviceBatch& batch, double lr, RunningMetrics& metrics);
  void set_rate(double lr);
  void give_up(const std::string& why);

  TrainStep& step_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  const GraphSetup setup_;
  at::Tensor rate_;      // the learning rate, [] on the device
  double set_rate_ = 0;  // what it holds
  std::vector<std::unique_ptr<Recording>> recordings_;
  std::string given_up_;
  int recorded_ = 0;
  int64_t replayed_ = 0, steps_ = 0;
};

}  // namespace saturate
