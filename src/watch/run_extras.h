// What lies beside a run's records, read for a report: images it kept, a trace, measured ladders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/ledger.h"

namespace saturate {

// An image of samples/ with what there is to say of it. Texts are as the run wrote them: not
// escaped.
struct KeptImage {
  std::string uri;     // data:image/...
  std::string title;   // its class, or "cat 70 %, dog 30 %"
  std::string detail;  // of a mistake: what it was taken for, loss
  std::string name;    // of its sample; may be empty
};

struct KeptImages {
  int64_t step = 0;
  std::vector<KeptImage> images;
};

// Of samples/training.json and samples/mistakes.json. Empty where there is no such file. What
// cannot be read adds to `warnings`; files with other names than a run gives, or that are no PNG or
// JPEG, are not looked at.
std::optional<KeptImages> read_training_samples(Env& env, const std::string& folder,
                                                std::vector<std::string>& warnings);
std::optional<KeptImages> read_mistakes(Env& env, const std::string& folder,
                                        std::vector<std::string>& warnings);

// Spans of a trace as a page shows them.
struct TimelineSpan {
  size_t name;  // position in Timeline::names
  double begin_us, end_us;
};
struct TimelineTrack {
  std::string name;
  std::vector<TimelineSpan> spans;  // by begin, outer ones first; they nest
};
struct Timeline {
  std::vector<std::string> names;
  std::vector<TimelineTrack> tracks;
  double end_us = 0;
  int steps = 0;        // shown
  size_t left_out = 0;  // spans too short to be shown among so many
};

// The first `steps` steps of trace.json, with the `most` longest spans. Empty where there is no
// trace; one that cannot be read adds to `warnings`.
std::optional<Timeline> read_timeline(Env& env, const std::string& folder, int steps, size_t most,
                                      std::vector<std::string>& warnings);

struct RungReading {
  std::string name;
  std::optional<double> steps_per_s, images_per_s, gain_previous, gain_first, low, high,
      memory_peak_bytes;
  std::optional<PhaseTimes> phases;       // shares of its wall time
  std::string skipped, seed_figure, set;  // empty where there is none
};

// What `ladder --json` or `sweep --json` wrote.
struct LadderReading {
  std::string path, title;
  std::vector<RungReading> rungs;
};

// Fails with kData on a file that is no such JSON.
LadderReading read_ladder_json(Env& env, const std::string& path);

}  // namespace saturate
