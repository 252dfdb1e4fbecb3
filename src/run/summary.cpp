#include <fmt/format.h>

#include <string_view>

#include "base/printable.h"
#include "record/metric_text.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

std::string metrics_line(const char* title, const Metrics& metrics, const std::string& unit) {
  return fmt::format("{:<12}{}\n", title, result_text(metrics, unit));
}

const char* remedy_of_finished(const TrainResult& result) {
  if (result.end == RunEnd::kDone) return "Raise train.epochs to continue";
  return result.best.not_finite
             ? "train.monitor is not finite: start a new run with a lower optimizer.lr"
             : "Raise train.early_stop to continue";
}

std::string end_line(const TrainResult& result) {
  if (result.was_finished)
    return fmt::format(
        "the run had {} at step {}: there is nothing to do, and nothing is written. {}\n",
        result.end == RunEnd::kDone ? "ended" : "stopped early", result.steps,
        remedy_of_finished(result));
  switch (result.end) {
    case RunEnd::kDone:
      return "";
    case RunEnd::kInterrupted:
      return fmt::format("interrupted at step {}\n", result.steps);
    case RunEnd::kEarlyStop:
      if (result.best.not_finite)
        return fmt::format(
            "stopped early at step {}: train.monitor is not finite. Lower optimizer.lr\n",
            result.steps);
      return fmt::format(
          "stopped early at step {}: no better value of train.monitor since step {}\n",
          result.steps, result.best.best_step);
    case RunEnd::kStopped:
      return fmt::format("stopped by an observer at step {}: {}\n", result.steps,
                         printable(result.stopped_by));
    case RunEnd::kTimeLimit:
      return fmt::format("stopped by train.max_minutes at step {}\n", result.steps);
    case RunEnd::kFailed:
      return fmt::format("failed at step {}\n", result.steps);
  }
  return "";
}

// Phases of the step are also given per step; the others happen between steps.
bool is_step_phase(Phase phase) {
  return phase != Phase::kCheckpoint && phase != Phase::kEvaluation && phase != Phase::kOther;
}

// Milliseconds, for the phases of the step; else "".
std::string per_step(const TrainResult& result, Phase phase, double seconds) {
  if (!is_step_phase(phase) || result.steps_here == 0) return "";
  return fmt::format("{:.2f}", 1e3 * seconds / double(result.steps_here));
}

// The host's part of a row.
std::string host_times(const TrainResult& result, std::string_view name, Phase phase,
                       double seconds) {
  return fmt::format("  {:<13}{:>10.2f}{:>12}{:>8.1f}%", name, seconds,
                     per_step(result, phase, seconds), 100 * seconds / result.wall_s);
}

// The host's time, and the GPU's if there is one.
std::string phase_table(const TrainResult& result) {
  const auto& device = result.device_phases;
  std::string text =
      fmt::format("\n{:<15}{:>10}{:>12}{:>9}", "where time went", "seconds", "ms a step", "share");
  if (device) text += fmt::format("{:>9}{:>11}", "GPU, s", "ms a step");
  text += fmt::format("{:>14}\n", "tensors, MiB");
  for (int i = 0; i < kPhaseCount; ++i) {
    const Phase phase = Phase(i);
    const double seconds = result.phases[phase];
    if (seconds == 0 && phase != Phase::kOther) continue;
    text += host_times(result, phase_name(phase), phase, seconds);
    if (device && phase != Phase::kOther)
      text += fmt::format("{:>9.2f}{:>11}", (*device)[phase],
                          per_step(result, phase, (*device)[phase]));
    else if (device)
      text += std::string(20, ' ');
    text += fmt::format("{:>14.1f}\n", double(result.tensor_peaks[phase]) / (1 << 20));
    if (const double network = result.phases.network_wait; phase == Phase::kWait && network > 0)
      text += host_times(result, "  network", phase, network) + "\n";
  }
  text += fmt::format("  {:<13}{:>10.2f}", "wall", result.wall_s);
  if (device) text += fmt::format("{:>30.2f}", device->total());
  return text + "\n";
}

std::string or_unknown(const std::optional<double>& value, double factor, int decimals,
                       const char* unit) {
  return value ? fmt::format("{:.{}f}{}", *value * factor, decimals, unit) : "n/a";
}

std::string telemetry_lines(const Telemetry& found) {
  std::string text = fmt::format(
      "{} ({} of the device's peak), loader queue {}, disk {} read and {} written\n",
      or_unknown(found.tflop_per_s, 1, 3, " TFLOP/s"), or_unknown(found.peak_share, 100, 1, " %"),
      or_unknown(found.queue, 1, 1, " batches"),
      or_unknown(found.disk_read_per_s, 1e-6, 1, " MB/s"),
      or_unknown(found.disk_write_per_s, 1e-6, 1, " MB/s"));
  if (!found.gpu_busy && !found.gpu_power_w) return text;
  text += fmt::format(
      "GPU busy {} (SMs {}), {}, {}, {} a sample", or_unknown(found.gpu_busy, 100, 0, " %"),
      or_unknown(found.gpu_sm_active, 100, 0, " %"), or_unknown(found.gpu_power_w, 1, 0, " W"),
      or_unknown(found.gpu_clock_mhz, 1, 0, " MHz"),
      or_unknown(found.joules_per_sample, 1, 3, " J"));
  if (!found.throttle_reasons.empty())
    text += fmt::format(", throttled by {} in {} of the readings", found.throttle_reasons,
                        or_unknown(found.gpu_throttled, 100, 0, " %"));
  return text + "\n";
}

std::string stream_line(const std::vector<StreamTime>& streams) {
  std::string text;
  for (const auto& time : streams)
    text += fmt::format("{} {} {:.2f} s busy, {:.2f} s idle", text.empty() ? "GPU streams:" : ";",
                        time.stream, time.busy_s, time.idle_s);
  return text.empty() ? "" : text + "\n";
}

}  // namespace

std::string format_summary(const TrainResult& result) {
  std::string text = end_line(result);
  if (result.eval) text += metrics_line("held out", *result.eval, result.unit);
  if (result.train) text += metrics_line("last epoch", *result.train, result.unit);
  if (result.best.best)
    text += fmt::format("{:<12}{} at step {}\n", "best", format_loss(*result.best.best),
                        result.best.best_step);
  if (result.was_finished) return text;
  text += phase_table(result);
  const double training = result.wall_s - result.phases[Phase::kEvaluation] -
                          result.phases[Phase::kCheckpoint] - result.phases[Phase::kOther];
  if (result.samples > 0)
    text += fmt::format("\n{:.0f} {}/s in training, {:.2f} cores in use, peak memory {:.2f} GiB\n",
                        double(result.samples) / training, result.unit, result.cores_used,
                        double(result.memory_peak_bytes) / (1 << 30));
  if (!result.graph.empty()) text += "train.graph: " + result.graph + "\n";
  if (!result.decoding.empty()) text += "data.decode_device: " + result.decoding + "\n";
  if (result.telemetry) text += telemetry_lines(*result.telemetry);
  text += stream_line(result.streams);
  if (result.skipped_count > 0) {
    text += fmt::format("skipped {} broken {}:\n", result.skipped_count, result.unit);
    for (const auto& sample : result.skipped)
      text += fmt::format("  {}: {}\n", printable(sample.name), printable(sample.reason));
    if (result.skipped.size() < result.skipped_count)
      text += fmt::format("  and {} more\n", result.skipped_count - result.skipped.size());
  }
  return text;
}

}  // namespace saturate
