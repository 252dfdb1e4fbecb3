// The metrics of a task, as text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/printable.h"
#include "saturate/metrics.h"

namespace saturate {

// "accuracy 91.20%", "mae 0.1234"; of names that a terminal line has, as acc, the short ones.
inline std::string metric_text(std::string_view name, double value, bool is_short = false) {
  if (name == "accuracy") return fmt::format("{} {:.2f}%", is_short ? "acc" : name, value * 100);
  if (name == "accuracy5")
    return fmt::format("{} {:.2f}%", is_short ? "acc5" : "top-5", value * 100);
  if (name == "iou") return fmt::format("{} {:.4f}", is_short ? "iou" : "mean IoU", value);
  if (name == "perplexity") return fmt::format("{} {:.5g}", is_short ? "ppl" : name, value);
  return fmt::format("{} {:.4g}", printable(std::string(name)), value);
}

// All of them, with two spaces after each.
inline std::string metrics_text(const Metrics& metrics, bool is_short = false) {
  std::string text;
  for (const auto& [name, value] : metrics.values)
    text += metric_text(name, value, is_short) + "  ";
  return text;
}

// "accuracy 91.20%  loss 0.3012  on 500 images"
inline std::string result_text(const Metrics& metrics, std::string_view unit) {
  if (metrics.samples == 0) return fmt::format("no result: there were no {}", unit);
  if (!metrics.pixels.empty() && metrics.weight() == 0)
    return fmt::format("no result: nothing in {} {} is labelled", metrics.samples, unit);
  return fmt::format("{}loss {}  on {} {}", metrics_text(metrics), format_loss(metrics.loss),
                     metrics.samples, unit);
}

}  // namespace saturate
