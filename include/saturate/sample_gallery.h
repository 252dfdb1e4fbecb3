// Images that a run keeps for its report, in samples/ of its folder: some as training saw them, and
// the worst mistakes of its last evaluation.
//
//   samples/training.json  {"step", "images": [{"file", "labels": [{"class", "weight"}]}]}
//   samples/mistakes.json  {"step", "images": [{"file", "class", "predicted", "probability",
//   "loss",
//                                               "name"}]}
//
// `probability` is the predicted class's. Files lie beside: PNG up to 64 pixels a side, else JPEG.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "saturate/augment.h"
#include "saturate/env.h"
#include "saturate/feed.h"
#include "saturate/sinks.h"

namespace saturate {

// Belongs to one thread. Methods that write fail with kRun.
class SampleGallery {
 public:
  // Keeps `count` images of each kind. `augment` says how pixels were normalised.
  SampleGallery(Env& env, const std::string& run_folder, std::vector<std::string> classes,
                const AugmentOptions& augment, int count);
  ~SampleGallery();

  // Writes the first images of a batch of step `step`, and returns them, tagged "samples/0" and so
  // on.
  std::vector<TaggedImage> write_training(int64_t step, const DeviceBatch& batch);

  // An evaluation: begin, then each batch with its logits [N, classes], then write. Mistakes are
  // images whose predicted class is not theirs; the worst have the highest loss.
  void begin_evaluation();
  void see(const DeviceBatch& batch, const at::Tensor& logits);
  void write_mistakes(int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
