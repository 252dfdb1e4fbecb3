// SPDX-License-Identifier: BSD-3-Clause
// Repeated evaluation of a model on one source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/train_step.h"

namespace saturate {

// A loader over held-out images that keeps its threads between evaluations. Not for concurrent use.
class Evaluator {
 public:
  // Opens `source`, whose classes are matched by name to `classes`, the model's; it may lack some.
  // Fails with kData naming an unknown one. `names`: batches carry their samples' names. `shard`:
  // the part of the images evaluated here, one per process. `data`: the source if it is open
  // already; `source` then only names it. `fields`: batch_fields() of the training source,
  // whose form it must have, else kUsage. Fails with kData on an empty source. Resolves threads,
  // precision and train.eval_batch as a run does; augment.device "auto" is the CPU. REQUIRES: the
  // recipe's train.task and model.classes are set, and augment.size, but for tensors.
  Evaluator(Env& env, const Recipe& recipe, const std::string& source,
            const std::vector<std::string>& classes, const at::Device& device, bool names = false,
            const Shard& shard = {}, std::shared_ptr<const Dataset> data = nullptr,
            const std::vector<TensorField>& fields = {});
  ~Evaluator();

  // As evaluate(), with the metrics of Task::whole() unless there are several shards. Empty if the
  // observer cancelled. Within a CancelScope that is cancelled, reads may then still be in
  // progress: stop() waits for them.
  std::optional<Metrics> run(Model& model, const Task& task,
                             const EvaluationObserver& observer = {});
  // Waits for reads in progress. Nothing to do after run() unless that was cancelled.
  void stop();
  // The number of samples in all shards.
  size_t size() const;
  // That of its source: see Dataset.
  std::string warning() const;
  // Samples skipped so far under data.on_error=skip.
  std::vector<SkippedSample> skipped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
