// SPDX-License-Identifier: BSD-3-Clause
// Metrics of a model: means over samples.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace saturate {

// Pixel counts of one class in segmentation, without ignored pixels.
struct ClassPixels {
  int64_t hits = 0;       // correctly predicted
  int64_t labelled = 0;   // labelled as this class
  int64_t predicted = 0;  // predicted as this class
};

// Means over samples; for segmentation over their labelled pixels.
struct Metrics {
  int64_t samples = 0;
  double loss = 0;
  double accuracy = 0;              // top-1
  std::optional<double> accuracy5;  // top-5, if there are more than five classes
  std::vector<ClassPixels> pixels;  // [classes], segmentation only
  // Samples whose loss overflowed in fp16, in skipped steps: excluded from all means, which are NaN
  // if there are no others.
  int64_t overflowed = 0;

  // Intersection over union, averaged over the classes that are labelled or predicted anywhere
  // (Jaccard index, macro average); empty without such a class.
  std::optional<double> mean_iou() const;
  // Merges the means of both, weighted by samples.
  void merge(const Metrics& other);
};

}  // namespace saturate
