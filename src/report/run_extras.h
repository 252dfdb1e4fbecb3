// A run's other files, read for a report: saved images, a trace, measured ladders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/ledger.h"

namespace saturate {

// An image of samples/ with its texts, as the run wrote them: not escaped.
struct KeptImage {
  std::string uri;    // data:image/...
  std::string title;  // its class, or "cat 70 %, dog 30 %"
  // For a mistake only:
  std::string predicted;  // class
  double probability = 0, loss = 0;
  std::string name;  // the sample's; may be empty
};

struct KeptImages {
  int64_t step = 0;
  std::vector<KeptImage> images;
};

// Whether a file of the folder is a symbolic link or behind one. It may be any file of the user,
// who would publish it with the page: it adds to `warnings`, and is not to be read.
bool leads_out(const std::string& folder, const std::string& file,
               std::vector<std::string>& warnings);

// Reads `file`, training.json or mistakes.json, of samples/. Empty if it is missing. Unreadable
// parts add to `warnings`; images with unexpected names, or that are neither PNG nor JPEG, are
// ignored.
std::optional<KeptImages> read_kept_images(Env& env, const std::string& folder,
                                           const std::string& file,
                                           std::vector<std::string>& warnings);

// Spans of a trace as shown on a page.
struct TimelineSpan {
  size_t name;  // index into Timeline::names
  double begin_us, end_us;
};
struct TimelineTrack {
  std::string name;
  std::vector<TimelineSpan> spans;  // by begin, outer ones first; nested
};
struct Timeline {
  std::vector<std::string> names;
  std::vector<TimelineTrack> tracks;
  double end_us = 0;
  int steps = 0;       // shown
  size_t skipped = 0;  // spans dropped because they are too short
};

// The first `steps` steps of trace.json, with the `most` longest spans. Empty if there is no trace;
// an unreadable one adds to `warnings`.
std::optional<Timeline> read_timeline(Env& env, const std::string& folder, int steps, size_t most,
                                      std::vector<std::string>& warnings);

struct RungReading {
  std::string name;
  std::optional<double> steps_per_s, images_per_s, gain_previous, gain_first, low, high,
      memory_peak_bytes;
  std::optional<PhaseTimes> phases;       // shares of its wall time
  std::string skipped, seed_figure, set;  // empty if there is none
};

struct RungNumber {
  const char* name;  // in the files and on the page
  std::optional<double> RungReading::*member;
};
inline constexpr RungNumber kRungNumbers[] = {
    {"steps_per_s", &RungReading::steps_per_s},
    {"images_per_s", &RungReading::images_per_s},
    {"gain_previous", &RungReading::gain_previous},
    {"gain_first", &RungReading::gain_first},
    {"low", &RungReading::low},
    {"high", &RungReading::high},
    {"memory_peak_bytes", &RungReading::memory_peak_bytes}};

// The output of `ladder --json` or `sweep --json`.
struct LadderReading {
  std::string path, title;
  std::string unit = "images";  // of samples
  std::string set;              // settings of all rungs
  std::vector<RungReading> rungs;
};

// Fails with kData if the file is not such JSON.
LadderReading read_ladder_json(Env& env, const std::string& path);

}  // namespace saturate
