#include "task/class_counts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace saturate {
namespace {

constexpr int64_t kCounters = 1 << 18;  // 8 bytes each

// A power of two.
int64_t counters_per_class(int64_t classes) {
  int64_t count = 1024;
  while (count > 32 && count * (classes + 1) > kCounters) count /= 2;
  return count;
}

at::Tensor count_here(const at::Tensor& labels, const at::Tensor& found, const at::Tensor& counted,
                      int64_t classes) {
  const at::Tensor counts = at::zeros({3, classes}, labels.options());
  const at::Tensor own_labels = labels.contiguous(), own_found = found.contiguous(),
                   own_counted = counted.contiguous();
  const auto* label = own_labels.const_data_ptr<int64_t>();
  const auto* predicted = own_found.const_data_ptr<int64_t>();
  const bool* counts_pixel = own_counted.const_data_ptr<bool>();
  auto* const hits = counts.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (!counts_pixel[i] || label[i] >= classes) continue;
    hits[label[i]] += label[i] == predicted[i];
    ++hits[classes + label[i]];
    ++hits[2 * classes + predicted[i]];
  }
  return counts;
}

}  // namespace

at::Tensor count_classes_spread(const at::Tensor& labels, const at::Tensor& found,
                                const at::Tensor& counted, int64_t classes) {
  const int64_t height = labels.size(-2), width = labels.size(-1),
                counters = counters_per_class(classes);
  const at::Tensor turn =
      at::arange(height * width, labels.options()).bitwise_and_(counters - 1).view({height, width});
  const at::Tensor one = at::ones({1}, labels.options());
  // Neighbouring pixels use neighbouring counters; one extra class is for ignored pixels.
  const auto count = [&](const at::Tensor& values, const at::Tensor& which) {
    const at::Tensor place = (at::where(which, values, classes) * counters + turn).flatten();
    return at::zeros({(classes + 1) * counters}, labels.options())
        .scatter_add_(0, place, one.expand_as(place))
        .view({classes + 1, counters})
        .sum(1)
        .narrow(0, 0, classes);
  };
  return at::stack({count(labels, counted.logical_and(labels.eq(found))), count(labels, counted),
                    count(found, counted)});
}

at::Tensor count_classes(const at::Tensor& labels, const at::Tensor& found,
                         const at::Tensor& counted, int64_t classes) {
  return labels.is_cpu() ? count_here(labels, found, counted, classes)
                         : count_classes_spread(labels, found, counted, classes);
}

void Answers::clear() {
  outputs_ = 0;
  cells_.clear();
}

void Answers::add(const at::Tensor& logits, const at::Tensor& labels) {
  if (logits.dim() != 2 || logits.size(0) == 0) return;
  const c10::NoGradGuard no_grad;
  outputs_ = logits.size(1);
  cells_.push_back(labels * outputs_ + logits.argmax(1));
}

at::Tensor Answers::cells() const {
  if (cells_.empty()) return at::empty({0}, at::kLong);
  return at::cat(cells_).cpu();
}

at::Tensor KeptOutputs::Form::restored(const at::Tensor& rows) const {
  std::vector<int64_t> sizes = {rows.size(0)};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return rows.reshape(sizes).to(type);
}

KeptOutputs::Form KeptOutputs::form_of(const at::Tensor& values) {
  return {values.sizes().slice(1).vec(), values.scalar_type()};
}

void KeptOutputs::clear() {
  outputs_form_ = labels_form_ = {};
  outputs_ = recent_values_ = 0;
  rows_.clear();
  recent_.clear();
}

void KeptOutputs::add(const at::Tensor& outputs, const at::Tensor& labels) {
  constexpr int64_t kMostOnDevice = int64_t{1} << 23;  // values, 64 MiB
  const auto flat = [](const at::Tensor& values) {
    return values.reshape({values.size(0), -1}).to(at::kDouble);
  };
  if (labels.size(0) == 0) return;
  const c10::NoGradGuard no_grad;
  outputs_form_ = form_of(outputs);
  labels_form_ = form_of(labels);
  outputs_ = outputs.numel() / outputs.size(0);
  recent_.push_back(at::cat({flat(outputs), flat(labels)}, 1));
  recent_values_ += recent_.back().numel();
  if (recent_values_ > kMostOnDevice) move_to_host();
}

void KeptOutputs::move_to_host() {
  if (!recent_.empty()) rows_.push_back(at::cat(recent_).to(at::kCPU));
  recent_.clear();
  recent_values_ = 0;
}

at::Tensor KeptOutputs::rows() {
  move_to_host();
  return rows_.empty() ? at::Tensor() : at::cat(rows_);
}

void KeptOutputs::finish(const Task& task, const at::Tensor& rows, Metrics& metrics) const {
  const int64_t labels = rows.size(1) - outputs_;
  task.whole(outputs_form_.restored(rows.narrow(1, 0, outputs_)),
             labels_form_.restored(rows.narrow(1, outputs_, labels)), metrics);
}

}  // namespace saturate
