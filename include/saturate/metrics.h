// metrics.jsonl: one JSON object a line, a contract that scripts read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/ledger.h"
#include "saturate/stream_clock.h"
#include "saturate/telemetry.h"

namespace saturate {

// What is not known is null in the file.
struct MetricsRecord {
  std::string kind;  // "step", "epoch", "eval" or "end"
  int64_t step = 0;  // steps completed
  double epoch = 0;  // epochs completed, with the fraction of the present one
  int64_t samples = 0;
  double time_s = 0;  // since the run began, earlier parts of a resumed run included
  // Means over what the record covers: the steps since the last such record, or the evaluation.
  std::optional<double> loss, accuracy, accuracy5, lr, images_per_s;
  std::optional<double> mean_iou;  // of segmentation, else left out
  // "eval" with train.ema: of the weights themselves, while loss and accuracy are the average's.
  std::optional<double> plain_loss, plain_accuracy;
  std::optional<PhaseTimes> phases;          // seconds over the same
  std::optional<int64_t> memory_peak_bytes;  // of the process, on the host, so far
  // The most bytes of tensors on the device at once, over the same; phases that had none are left
  // out.
  std::optional<PhaseBytes> tensor_peak_bytes;
  std::optional<Telemetry> telemetry;  // "step": over the same; "end": of this process's part
  // Likewise, of a GPU, as far as its streams had come when the record was made; else empty.
  std::optional<PhaseTimes> device_phases;  // on the stream of the step: see DevicePhases
  std::vector<StreamTime> streams;
};

std::string to_json_line(const MetricsRecord& record);

// Empty where the line is no record. Keys that an older version did not write stay at their
// defaults; a phase that only a newer one knows counts as kOther.
std::optional<MetricsRecord> from_json_line(const std::string& line);

// Appends records to a file, each handed to the system as soon as it is written. Not for concurrent
// use.
class MetricsWriter {
 public:
  // Continues an existing file, without the lines of steps after `keep_until_step` and without a
  // line cut short: a resumed run repeats those steps.
  MetricsWriter(Env& env, const std::string& path, int64_t keep_until_step);
  void write(const MetricsRecord& record);

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace saturate
