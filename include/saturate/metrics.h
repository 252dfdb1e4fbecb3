// SPDX-License-Identifier: BSD-3-Clause
// Metrics of a model: the loss, and what its task names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

// Pixel counts of one class in segmentation, without ignored pixels.
struct ClassPixels {
  int64_t hits = 0;       // correctly predicted
  int64_t labelled = 0;   // labelled as this class
  int64_t predicted = 0;  // predicted as this class
};

// A metric that a task names, and its value.
struct MetricValue {
  std::string name;  // "accuracy", "mae"
  double value = 0;
};

// Means over samples, except for values that Task::derive() computes; for segmentation means over
// labelled pixels.
struct Metrics {
  int64_t samples = 0;
  double loss = 0;
  // In the order of Task::metric_names(), without unknown ones.
  std::vector<MetricValue> values = {};
  std::vector<ClassPixels> pixels = {};  // [classes], segmentation only
  // Sums over samples from which the task derives values that are not means.
  std::vector<double> totals = {};
  // Samples whose loss overflowed in fp16, in skipped steps: excluded from all means, which are NaN
  // if there are no others.
  int64_t overflowed = 0;

  // The weight of the means: labelled pixels in segmentation, else samples without overflow.
  double weight() const;
  // If there are samples but weight() is 0, sets the loss and the values to NaN: they are unknown.
  void clear_if_uncounted();
  // Empty if there is none of that name.
  std::optional<double> value(std::string_view name) const;
  // Replaces the value of that name, or adds it at the end.
  void set(std::string_view name, double value);
  // Intersection over union, averaged over the classes that are labelled or predicted anywhere
  // (Jaccard index, macro average); empty without such a class.
  std::optional<double> mean_iou() const;
  // Merges the means of both, weighted by weight(), and adds their sums; Task::derive() then
  // computes the values that are not means.
  void merge(const Metrics& other);
};

}  // namespace saturate
