// A run's folder, read for a report: written by any version, finished or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "record/class_results.h"
#include "record/metrics.h"
#include "report/run_extras.h"
#include "saturate/data/env.h"

namespace saturate {

enum class RunState {
  kEnded,    // has an "end" record
  kRunning,  // has none, and a process locks the folder or its records
  kStopped,  // has none, and no process locks them: killed, crashed or lost power
};

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

struct RunReading {
  std::string folder;  // as the user gave it
  std::string name;    // its last part
  RunState state = RunState::kStopped;
  std::vector<MetricsRecord> steps, evaluations;  // as in the file; steps of a long run merged
  std::optional<MetricsRecord> last;              // of any kind: the run's current position
  std::optional<MetricsRecord> end;               // the last "end" record
  std::string ended_by;                           // its exception; empty: none
  NamedTexts recipe;                              // "train.batch" and its value; empty if missing
  NamedTexts host;                                // of host.json; likewise
  std::optional<ClassResults> by_class;           // of classes.json: the last evaluation
  std::optional<KeptImages> training, mistakes;
  std::optional<Timeline> timeline;
  std::vector<std::string> warnings;  // of files or lines that could not be read
};

// Fails with kData if the folder has no metrics.jsonl. All other damage becomes a warning. If that
// file has `merge_from_bytes` bytes or more, neighbouring "step" records are merged as they are
// read, so that no more are kept than a file of `merge_from_bytes` bytes has. The last one stays as
// it is, unless an evaluation follows.
RunReading read_run(Env& env, const std::string& folder,
                    uint64_t merge_from_bytes = uint64_t{256} << 20);

// The keys of a recipe with their values as text; fails with kUsage on invalid TOML.
NamedTexts flatten_recipe(const std::string& toml, const std::string& where);

}  // namespace saturate
