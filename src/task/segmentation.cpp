#include <ATen/TensorOperators.h>

#include <cmath>

#include "saturate/task.h"
#include "task/class_counts.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

class Segmentation : public Task {
 public:
  // 0 if no pixel is labelled, where torch returns NaN.
  at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels,
                       double smoothing) const override {
    return cross_entropy(logits, labels, smoothing, at::Reduction::Sum) /
           counted(labels).clamp_min(1);
  }
  bool is_cross_entropy() const override { return true; }
  at::Tensor counted(const at::Tensor& labels) const override { return labels.ge(0).sum(); }
  at::Tensor mirrored(const at::Tensor& logits) const override { return logits.flip({3}); }

  // Pixels by class, as of count_classes(), and loss * labelled pixels [] double.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& logits,
                               const at::Tensor& labels) const override {
    const at::Tensor labelled = labels.ge(0);
    return {count_classes(labels, logits.argmax(1), labelled, logits.size(1)),
            loss.to(at::kDouble) * labelled.sum()};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    Metrics metrics;
    if (samples == 0) {
      metrics.loss = metrics.accuracy = std::nan("");
      return metrics;
    }
    const at::Tensor host = sums.at(0).cpu();  // waits for the device
    const int64_t classes = host.size(1);
    const int64_t* const count = host.const_data_ptr<int64_t>();
    int64_t hits = 0, labelled = 0;
    for (int64_t i = 0; i < classes; ++i) {
      const ClassPixels own{count[i], count[classes + i], count[2 * classes + i]};
      metrics.pixels.push_back(own);
      hits += own.hits;
      labelled += own.labelled;
    }
    if (labelled == 0) return metrics;
    metrics.loss = sums.at(1).item<double>() / double(labelled);
    metrics.accuracy = double(hits) / double(labelled);
    return metrics;
  }
};

}  // namespace

const Task& segmentation() {
  static const Segmentation task;
  return task;
}

}  // namespace saturate
