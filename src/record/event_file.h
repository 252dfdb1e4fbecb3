// TensorBoard's event files: records framed as TFRecord, each an Event in protocol buffers.
//
//   record = length (8 bytes, little-endian), masked CRC-32C of it (4), event, masked CRC of it (4)
//   masked = rotate_right(crc, 15) + 0xa282ead8
//
// Formats: tensorflow/core/lib/io/record_writer.h, and event.proto, summary.proto and tensor.proto
// of tensorboard/compat/proto.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "record/sinks.h"
#include "saturate/data/env.h"

namespace saturate {

// An Event without its frame. `wall_s`: seconds since 1970.
std::string file_version_event(double wall_s);
// For a process that continues an earlier one: readers discard that one's events of `step` and
// later.
std::string restart_event(double wall_s, int64_t step);
std::string scalars_event(double wall_s, int64_t step,
                          const std::vector<std::pair<std::string, float>>& scalars);
// `markdown` is shown in the text dashboard.
std::string text_event(double wall_s, int64_t step, const std::string& tag,
                       const std::string& markdown);

std::string images_event(double wall_s, int64_t step, const std::vector<TaggedImage>& images);
std::string histograms_event(double wall_s, int64_t step,
                             const std::vector<TaggedHistogram>& histograms);

std::string framed(const std::string& event);

// Appends events to a new file, each written to the system at once.
class EventFile {
 public:
  EventFile(Env& env, const std::string& path) : file_(env.open_writable(path)) {}
  void write(const std::string& event);

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace saturate
