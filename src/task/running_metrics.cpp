#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "saturate/task.h"

namespace saturate {
namespace {

void add_to(at::Tensor& sum, const at::Tensor& more) {
  sum = sum.defined() ? sum + more : more;
}

}  // namespace

double Metrics::weight() const {
  int64_t labelled = 0;
  for (const ClassPixels& of : pixels) labelled += of.labelled;
  return double(pixels.empty() ? samples - overflowed : labelled);
}

void Metrics::clear_if_uncounted() {
  if (samples == 0 || weight() > 0) return;
  loss = std::nan("");
  for (MetricValue& each : values) each.value = std::nan("");
}

std::optional<double> Metrics::value(std::string_view name) const {
  const auto found = std::ranges::find(values, name, &MetricValue::name);
  return found == values.end() ? std::nullopt : std::optional(found->value);
}

void Metrics::set(std::string_view name, double value) {
  const auto found = std::ranges::find(values, name, &MetricValue::name);
  if (found == values.end())
    values.push_back({std::string(name), value});
  else
    found->value = value;
}

std::optional<double> Metrics::mean_iou() const {
  double sum = 0;
  int64_t seen = 0;
  for (const ClassPixels& of : pixels) {
    const int64_t either = of.labelled + of.predicted - of.hits;
    if (either == 0) continue;
    sum += double(of.hits) / double(either);
    ++seen;
  }
  return seen > 0 ? std::optional(sum / double(seen)) : std::nullopt;
}

void Metrics::merge(const Metrics& other) {
  if (other.samples == 0) return;
  if (samples == 0) {
    *this = other;
    return;
  }
  const double own = weight(), others = other.weight();
  const double share = own + others > 0 ? others / (own + others) : 0;
  const auto mean = [&](double a, double b) {
    if (own == 0 || others == 0) return others > 0 ? b : a;  // the other mean may be NaN
    return a + (b - a) * share;
  };
  loss = mean(loss, other.loss);
  for (const MetricValue& each : other.values)
    set(each.name, mean(value(each.name).value_or(0), each.value));
  totals.resize(std::max(totals.size(), other.totals.size()));
  for (size_t i = 0; i < other.totals.size(); ++i) totals[i] += other.totals[i];
  samples += other.samples;
  overflowed += other.overflowed;
  pixels.resize(std::max(pixels.size(), other.pixels.size()));
  for (size_t i = 0; i < other.pixels.size(); ++i) {
    pixels[i].hits += other.pixels[i].hits;
    pixels[i].labelled += other.pixels[i].labelled;
    pixels[i].predicted += other.pixels[i].predicted;
  }
}

void RunningMetrics::add(const at::Tensor& loss, const at::Tensor& outputs,
                         const at::Tensor& labels, bool may_overflow) {
  const c10::NoGradGuard no_grad;
  const int64_t n = labels.size(0);
  samples_ += n;
  const std::vector<at::Tensor> more = task_->sums(loss, outputs, labels);
  if (may_overflow) {
    const at::Tensor overflows = at::isfinite(loss).logical_not();  // [] bool
    add_to(overflowed_, overflows.to(at::kDouble) * n);
    for (const at::Tensor& sum : more) sum.masked_fill_(overflows, 0);
  }
  sums_.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) add_to(sums_[i], more[i]);
}

void RunningMetrics::add(const RunningMetrics& other) {
  const c10::NoGradGuard no_grad;
  const auto add_copy = [](at::Tensor& sum, const at::Tensor& more) {
    if (more.defined()) sum = sum.defined() ? sum + more : more.clone();
  };
  samples_ += other.samples_;
  sums_.resize(std::max(sums_.size(), other.sums_.size()));
  for (size_t i = 0; i < other.sums_.size(); ++i) add_copy(sums_[i], other.sums_[i]);
  add_copy(overflowed_, other.overflowed_);
}

Metrics RunningMetrics::read() {
  Metrics metrics;
  if (samples_ > 0) {
    const int64_t overflowed = overflowed_.defined() ? std::llround(overflowed_.item<double>()) : 0;
    metrics = task_->metrics(sums_, samples_ - overflowed);
    metrics.samples = samples_;
    metrics.overflowed = overflowed;
  }
  *this = RunningMetrics(*task_);
  return metrics;
}

}  // namespace saturate
