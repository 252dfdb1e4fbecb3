#include <fmt/format.h>

#include "saturate/trainer.h"

namespace saturate {
namespace {

std::string metrics_line(const char* title, const Metrics& metrics) {
  std::string text = fmt::format("{:<12}accuracy {:.2f}%", title, metrics.accuracy * 100);
  if (metrics.accuracy5) text += fmt::format("  top-5 {:.2f}%", *metrics.accuracy5 * 100);
  return text + fmt::format("  loss {:.4f}  on {} images\n", metrics.loss, metrics.samples);
}

std::string end_line(const TrainResult& result) {
  switch (result.end) {
    case RunEnd::kDone:
      return "";
    case RunEnd::kInterrupted:
      return fmt::format("interrupted at step {}\n", result.steps);
    case RunEnd::kEarlyStop:
      return fmt::format(
          "stopped early at step {}: no better value of train.monitor since step {}\n",
          result.steps, result.best.best_step);
    case RunEnd::kTimeLimit:
      return fmt::format("stopped by train.max_minutes at step {}\n", result.steps);
  }
  return "";
}

// Phases of the step are also given per step; the others happen between steps.
bool is_step_phase(Phase phase) {
  return phase != Phase::kCheckpoint && phase != Phase::kEvaluation && phase != Phase::kOther;
}

std::string phase_table(const TrainResult& result) {
  std::string text = fmt::format("\n{:<15}{:>10}{:>12}{:>9}{:>14}\n", "where time went", "seconds",
                                 "ms a step", "share", "tensors, MiB");
  for (int i = 0; i < kPhaseCount; ++i) {
    const Phase phase = Phase(i);
    const double seconds = result.phases[phase];
    if (seconds == 0 && phase != Phase::kOther) continue;
    const std::string per_step =
        is_step_phase(phase) && result.steps_here > 0
            ? fmt::format("{:.2f}", 1e3 * seconds / double(result.steps_here))
            : "";
    text += fmt::format("  {:<13}{:>10.2f}{:>12}{:>8.1f}%{:>14.1f}\n", phase_name(phase), seconds,
                        per_step, 100 * seconds / result.wall_s,
                        double(result.tensor_peaks[phase]) / (1 << 20));
  }
  return text + fmt::format("  {:<13}{:>10.2f}\n", "wall", result.wall_s);
}

}  // namespace

std::string format_summary(const TrainResult& result) {
  std::string text = end_line(result);
  if (result.eval) text += metrics_line("held out", *result.eval);
  if (result.train) text += metrics_line("last epoch", *result.train);
  if (result.best.best)
    text +=
        fmt::format("{:<12}{:.4f} at step {}\n", "best", *result.best.best, result.best.best_step);
  text += phase_table(result);
  const double training = result.wall_s - result.phases[Phase::kEvaluation] -
                          result.phases[Phase::kCheckpoint] - result.phases[Phase::kOther];
  if (result.samples > 0)
    text +=
        fmt::format("\n{:.0f} images/s in training, {:.2f} cores in use, peak memory {:.2f} GiB\n",
                    double(result.samples) / training, result.cores_used,
                    double(result.memory_peak_bytes) / (1 << 30));
  if (result.skipped_count > 0) {
    text += fmt::format("skipped {} broken images:\n", result.skipped_count);
    for (const auto& sample : result.skipped)
      text += fmt::format("  {}: {}\n", sample.name, sample.reason);
    if (result.skipped.size() < result.skipped_count)
      text += fmt::format("  and {} more\n", result.skipped_count - result.skipped.size());
  }
  return text;
}

}  // namespace saturate
