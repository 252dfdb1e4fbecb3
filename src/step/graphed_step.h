// The whole step as one captured graph (train.graph):
//
//   copy the batch into the graph's memory, and the learning rate into a scalar
//   first three times:  run the step on it, as it will be captured
//   the fourth time:    capture it: finish the batch (effects, normalisation), forward, backward,
//                       scaler, clip, optimizer; then as below
//   from then on:       replay
//   add the step's counters to the metrics
//
// Batches of another size, such as an epoch's last, use the eager step. Inputs of another shape are
// captured in a separate graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/train_step.h"
#include "step/step_graph.h"

namespace saturate {

// Why a GPU run's steps cannot be captured, as half a sentence; empty if they may be. `processes`:
// that train together. Later reasons are in GraphedStep::failure().
std::string why_no_graph(const Recipe& recipe, int processes);

struct GraphSetup {
  int64_t batch = 0;  // batch size of the captured steps
  std::function<std::unique_ptr<StepGraph>()> make;
  std::function<void(DeviceBatch&)> finish;  // Feeder::finish
  // Whether epochs have images of several sizes: another size than before drops the graphs.
  bool changes_size = false;
};

// Not for concurrent use. What the constructor takes must outlive it.
class GraphedStep {
 public:
  // Eager steps before capture: they fix cuDNN's algorithms and create the optimizer's state.
  static constexpr int kWarmUp = 3;
  // Input shapes that are captured; with more of them capturing stops.
  static constexpr size_t kMostShapes = 2;

  // REQUIRES: the optimizer can read its rate from the device; why_no_graph() is empty.
  GraphedStep(TrainStep& step, Optimizer& optimizer, const at::Device& device, Ledger& ledger,
              GraphSetup setup);
  ~GraphedStep();

  // As TrainStep::run(); may finish the batch. A step that cannot be captured runs eagerly, as do
  // all later ones: see failure().
  void run(DeviceBatch& batch, double lr, RunningMetrics& metrics);

  // Why nothing is captured any more, as half a sentence; empty otherwise.
  const std::string& failure() const { return failure_; }
  int recorded() const { return recorded_; }      // graphs
  int64_t replayed() const { return replayed_; }  // steps
  int64_t steps() const { return steps_; }

 private:
  struct Recording;

  Recording* recording_for(const DeviceBatch& batch);
  void run_recorded(Recording& recording, const DeviceBatch& batch);
  bool record(Recording& recording, const std::function<void()>& body);
  void run_plain(DeviceBatch& batch, double lr, RunningMetrics& metrics);
  void finish(DeviceBatch& batch) const;
  void set_rate(double lr);
  void stop_capturing(const std::string& why);

  TrainStep& step_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  const GraphSetup setup_;
  at::Tensor rate_;      // the learning rate, [] on the device
  double set_rate_ = 0;  // its value
  std::vector<std::unique_ptr<Recording>> recordings_;
  std::string failure_;
  int recorded_ = 0;
  int64_t replayed_ = 0, steps_ = 0;
};

}  // namespace saturate
