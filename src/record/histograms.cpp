#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "record/sinks.h"
#include "saturate/model.h"

namespace saturate {
namespace {

constexpr int kBins = 64;

std::optional<TaggedHistogram> histogram_of(std::span<const float> values) {
  TaggedHistogram found;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    found.min = found.count == 0 ? value : std::min(found.min, double(value));
    found.max = found.count == 0 ? value : std::max(found.max, double(value));
    ++found.count;
    found.sum += value;
    found.sum_of_squares += double(value) * value;
  }
  if (found.count == 0) return std::nullopt;
  const double width = (found.max - found.min) / kBins;
  found.counts.assign(kBins, 0);
  for (int i = 0; i < kBins; ++i) found.edges.push_back(found.min + width * (i + 1));
  found.edges.back() = found.max;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const double bin = width > 0 ? std::ceil((value - found.min) / width) - 1 : 0;
    ++found.counts[size_t(std::clamp(bin, 0.0, double(kBins - 1)))];
  }
  return found;
}

}  // namespace

std::vector<TaggedHistogram> histograms_of(const std::string& prefix,
                                           const std::vector<NamedTensor>& tensors) {
  std::vector<TaggedHistogram> histograms;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    auto found = histogram_of({values.const_data_ptr<float>(), size_t(values.numel())});
    if (!found) continue;
    found->tag = prefix + "/" + name;
    histograms.push_back(std::move(*found));
  }
  return histograms;
}

}  // namespace saturate
