// metrics.jsonl: one JSON object per line, a contract for scripts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/ledger.h"
#include "saturate/telemetry.h"
#include "trace/stream_clock.h"

namespace saturate {

// Unknown values are null in the file.
struct MetricsRecord {
  std::string kind;  // "step", "epoch", "eval" or "end"
  int64_t step = 0;  // steps completed
  double epoch = 0;  // epochs completed, including the fraction of the present one
  int64_t samples = 0;
  double time_s = 0;  // since the run began, including earlier parts of a resumed run
  // Means over the record's period: the steps since the last such record, or the evaluation.
  std::optional<double> loss, accuracy, accuracy5, lr, images_per_s;
  std::optional<double> mean_iou;  // for segmentation, else omitted
  // "eval" with train.ema: of the weights themselves, while loss and accuracy are the average's.
  std::optional<double> plain_loss, plain_accuracy;
  std::optional<PhaseTimes> phases;          // seconds over the same period
  std::optional<int64_t> memory_peak_bytes;  // of the process, on the host, so far
  // Peak bytes of tensors on the device over the same period; phases without any are omitted.
  std::optional<PhaseBytes> tensor_peak_bytes;
  std::optional<Telemetry> telemetry;  // "step": over the same period; "end": of this process
  // Likewise for a GPU, as far as its streams had got at the time of the record; else empty.
  std::optional<PhaseTimes> device_phases;  // on the stream of the step: see DevicePhases
  std::vector<StreamTime> streams;
};

std::string to_json_line(const MetricsRecord& record);

// Empty if the line is not a record. Keys missing in an older version keep their defaults; a phase
// unknown to this version counts as kOther.
std::optional<MetricsRecord> from_json_line(const std::string& line);

// Appends records to a file, each written to the system at once. Not for concurrent use.
class MetricsWriter {
 public:
  // Continues an existing file, dropping lines of steps after `keep_until_step` and a truncated
  // line: a resumed run repeats those steps.
  MetricsWriter(Env& env, const std::string& path, int64_t keep_until_step);
  void write(const MetricsRecord& record);

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace saturate
