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

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "record/sinks.h"
#include "saturate/data/augment.h"
#include "saturate/data/env.h"
#include "saturate/data/image.h"
#include "saturate/feed.h"

namespace saturate {

// A failure is a warning: the run continues without these images.
template <class Body>
void or_warn(const char* what, ObserverContext& run, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    run.warn(std::string(what) + " are not kept, the run continues: " + error.what());
  }
}

// Belongs to one thread. Methods that write fail with kRun.
class SampleGallery : public Observer {
 public:
  // Saves `count` images of each kind. `augment`: the normalisation of the pixels.
  SampleGallery(Env& env, const std::string& run_folder, std::vector<std::string> classes,
                const AugmentOptions& augment, int count);

  // Writes the first images of a batch of step `step`, and returns them, tagged "samples/0" etc.
  std::vector<TaggedImage> write_training(int64_t step, const DeviceBatch& batch);

  // For an evaluation: begin, then each batch with its logits [N, classes], then write. Mistakes
  // are images with a wrong predicted class; the worst have the highest loss.
  void begin_evaluation() { worst_ = {}, names_.clear(), seen_ = 0; }
  // Does not wait for a GPU.
  void see(const DeviceBatch& batch, const at::Tensor& logits);
  void write_mistakes(int64_t step);
  void after_evaluation(const EvaluationEvent& event, ObserverContext& run) override {
    or_warn("mistakes", run, [&] { write_mistakes(event.position.step); });
  }

 private:
  // Images on the batches' device, the highest loss first; below 0: the class is right. `places`:
  // their numbers in this evaluation.
  struct Worst {
    at::Tensor losses, labels, predicted, probabilities, places, images;
    // Keeps the highest losses of both.
    void merge(const Worst& more, int64_t most);
  };

  // Undoes the normalisation. `pixels`: [3, H, W] on the host.
  Image image_of(const at::Tensor& pixels) const;
  std::string class_of(int64_t label) const;
  // Writes one image; returns its file's name.
  std::string write_image(const std::string& kind, size_t number, const Image& image,
                          std::span<const std::byte> bytes) const;
  void write_list(const std::string& name, int64_t step, const nlohmann::ordered_json& list) const;

  Env& env_;
  const std::string folder_;
  const std::vector<std::string> classes_;
  const Normalize normalize_;
  const int64_t count_;
  Worst worst_;                     // at most `count_`
  std::vector<std::string> names_;  // by place
  int64_t seen_ = 0;                // images
};

}  // namespace saturate
