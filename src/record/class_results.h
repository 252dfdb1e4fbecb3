// An evaluation's results by class: accuracy and confusions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace saturate {

struct ClassPixels;  // metrics.h

// Counts of images, or of pixels in segmentation.
struct ClassResult {
  std::string name;
  int64_t count = 0;      // labelled as this class
  int64_t predicted = 0;  // predicted as this class
  int64_t correct = 0;    // both

  // Empty if undefined.
  std::optional<double> accuracy() const;  // correct / count, also known as recall
  std::optional<double> iou() const;       // intersection over union
};

// Images of one class that were predicted as another one, or the same.
struct ConfusionCell {
  int64_t label = 0, prediction = 0;  // indices into ClassResults::classes
  int64_t count = 0;
};

struct ClassResults {
  int64_t step = 0;  // of the run, at the evaluation
  bool of_pixels = false;
  // One per output of the model; outputs without a class name are numbered.
  std::vector<ClassResult> classes;
  // The nonzero cells of the confusion matrix, by label, then prediction. Not for pixels.
  std::vector<ConfusionCell> confusion;
};

// From Answers::cells(). Labels outside the outputs are ignored.
ClassResults class_results(std::span<const int64_t> cells, int64_t outputs,
                           const std::vector<std::string>& names);
// From Metrics::pixels.
ClassResults class_results(const std::vector<ClassPixels>& pixels,
                           const std::vector<std::string>& names);

// The least accurate classes (for pixels, those of the least IoU) first; without empty classes.
// Indices into `classes`, at most `most`.
std::vector<size_t> worst_classes(const ClassResults& results, size_t most);
// The most frequent wrong answers first, at most `most`; only those for images of class `label`, if
// given.
std::vector<ConfusionCell> worst_confusions(const ClassResults& results, size_t most,
                                            std::optional<int64_t> label = std::nullopt);

// As a table for a terminal: with up to 20 classes all of them, and the confusion matrix; otherwise
// the worst.
std::string format_class_results(const ClassResults& results);

// Adds "counted" ("images" or "pixels", which for volumes are voxels), "classes" and "confusion" to
// an object.
void add_json(nlohmann::ordered_json& json, const ClassResults& results);

// Converts to classes.json of a run's folder, and back; empty if the text is invalid.
std::string class_results_json(const ClassResults& results);
std::optional<ClassResults> parse_class_results(const std::string& text);

}  // namespace saturate
