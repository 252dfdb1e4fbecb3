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

// Belongs to one thread. Methods that write fail with kRun.
class SampleGallery {
 public:
  // Saves `count` images of each kind. `augment`: the normalisation of the pixels.
  SampleGallery(Env& env, const std::string& run_folder, std::vector<std::string> classes,
                const AugmentOptions& augment, int count);
  ~SampleGallery();

  // Writes the first images of a batch of step `step`, and returns them, tagged "samples/0" etc.
  std::vector<TaggedImage> write_training(int64_t step, const DeviceBatch& batch);

  // For an evaluation: begin, then each batch with its logits [N, classes], then write. Mistakes
  // are images with a wrong predicted class; the worst have the highest loss.
  void begin_evaluation();
  void see(const DeviceBatch& batch, const at::Tensor& logits);
  void write_mistakes(int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
