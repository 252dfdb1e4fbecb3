// What an evaluation found class by class: how much is right, and what is taken for what.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace saturate {

struct ClassPixels;  // train_step.h

// Images, or pixels in segmentation.
struct ClassResult {
  std::string name;
  int64_t count = 0;      // labelled so
  int64_t predicted = 0;  // taken for it
  int64_t correct = 0;    // both

  // Empty where there are none.
  std::optional<double> accuracy() const;  // correct / count, also known as recall
  std::optional<double> iou() const;       // intersection over union
};

// Images of one class that were taken for one class.
struct ConfusionCell {
  int64_t label = 0, prediction = 0;  // positions in ClassResults::classes
  int64_t count = 0;
};

struct ClassResults {
  int64_t step = 0;  // of the run, at the evaluation
  bool of_pixels = false;
  // One for each output of the model; outputs beyond the classes' names are named by numbers.
  std::vector<ClassResult> classes;
  // The confusion matrix's cells that are not 0, by label, then prediction. Not of pixels.
  std::vector<ConfusionCell> confusion;
};

// From Answers::cells(). Labels that are no output's are passed over.
ClassResults class_results(std::span<const int64_t> cells, int64_t outputs,
                           const std::vector<std::string>& names);
// From Metrics::pixels.
ClassResults class_results(const std::vector<ClassPixels>& pixels,
                           const std::vector<std::string>& names);

// The least accurate classes (of pixels those of the least IoU) first; without those that have no
// image. Positions in `classes`, at most `most`.
std::vector<size_t> worst_classes(const ClassResults& results, size_t most);
// The most frequent wrong answers first, at most `most`; only those for images of class `label`,
// where it is one.
std::vector<ConfusionCell> worst_confusions(const ClassResults& results, size_t most,
                                            std::optional<int64_t> label = std::nullopt);

// As a table for a terminal: every class up to 20, and the confusion matrix; of more classes the
// worst.
std::string format_class_results(const ClassResults& results);

// classes.json of a run's folder; and back, empty where the text is nothing of the kind.
std::string class_results_json(const ClassResults& results);
std::optional<ClassResults> parse_class_results(const std::string& text);

}  // namespace saturate
