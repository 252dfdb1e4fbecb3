// Images saved for a run's report, in samples/ of its folder: some training inputs, and the worst
// mistakes of its last evaluation.
//
//   samples/training.json  {"step", "images": [{"file", "labels": [{"class", "weight"}]}]}
//   samples/mistakes.json  {"step", "images": [{"file", "class", "predicted", "probability",
//   "loss",
//                                               "name"}]}
//
// `probability` is the predicted class's. Image files are PNG up to 64 pixels a side, else JPEG.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "record/sinks.h"
#include "saturate/data/augment.h"
#include "saturate/data/env.h"
#include "saturate/feed.h"

namespace saturate {

// A run goes on without what it would have shown.
template <class Body>
void or_warn(const char* what, ObserverContext& run, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    run.warn(std::string(what) + " are not kept, the run goes on: " + error.what());
  }
}

// Belongs to one thread. Methods that write fail with kRun.
class SampleGallery : public Observer {
 public:
  // Saves `count` images of each kind. `augment`: the normalisation of the pixels.
  SampleGallery(Env& env, const std::string& run_folder, std::vector<std::string> classes,
                const AugmentOptions& augment, int count);
  ~SampleGallery() override;

  // Writes the first images of a batch of step `step`, and returns them, tagged "samples/0" etc.
  std::vector<TaggedImage> write_training(int64_t step, const DeviceBatch& batch);

  // For an evaluation: begin, then each batch with its logits [N, classes], then write. Mistakes
  // are images with a wrong predicted class; the worst have the highest loss.
  void begin_evaluation();
  void see(const DeviceBatch& batch, const at::Tensor& logits);
  void write_mistakes(int64_t step);
  void after_evaluation(const EvaluationEvent& event, ObserverContext& run) override {
    or_warn("mistakes", run, [&] { write_mistakes(event.position.step); });
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
