// A recipe: every setting of a run, as plain structs with their defaults.
//
// What each key means, its unit and its range stand in the one option table
// (src/base/*_rows.cpp), which generates the TOML parser, `--set`, `saturate list options`,
// docs/recipe.md and the recipe.toml saved with a run. A member here without a row there cannot be
// set by a user, and a test says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data_options.h"
#include "saturate/distributed_options.h"
#include "saturate/step_options.h"
#include "saturate/watch_options.h"

namespace saturate {

class Env;

// One class for an image, or one for each of its pixels.
enum class Task { kClassify, kSegment };
enum class Monitor {
  kEvalAccuracy,
  kEvalAccuracy5,
  kEvalLoss,
  kTrainAccuracy,
  kTrainLoss,
  kEvalIou
};
// Of the training epoch rather than of an evaluation.
inline bool is_training_metric(Monitor monitor) {
  return monitor == Monitor::kTrainAccuracy || monitor == Monitor::kTrainLoss;
}
enum class MonitorMode { kAuto, kMin, kMax };
// Whether a GPU's step is recorded once and run again as a whole: see graphed_step.h.
enum class GraphMode { kOff, kAuto };
// Of a key that is false, true or "auto".
enum class Toggle { kOff, kOn, kAuto };

// Stands in an integer member for the recipe's "auto".
inline constexpr int kAutomatic = -1;

struct TrainOptions {
  Task task = Task::kClassify;
  double epochs = 10;
  int batch = 128;              // kAutomatic: as many images as fit, see batch_search.h
  int effective_batch = 0;      // with kAutomatic; 0: as many as fit at once
  int accumulate = 1;           // parts of a batch
  int checkpoint_segments = 0;  // 0: none; kAutomatic
  double memory_gb = 0;         // GiB for tensors; 0: all that the device has
  double clip_norm = 0;         // 0: no clipping
  int eval_batch = 0;           // 0: as train.batch, or one part of it where that was kAutomatic
  double label_smoothing = 0;
  int eval_every = 1;        // epochs; 0: not by epochs
  int eval_every_steps = 0;  // 0: not by steps
  bool eval_flip = false;
  int eval_shift = 0;       // pixels
  double ema = 0;           // decay of the averaged weights; 0: none
  double lookahead = 0;     // share of the slow weights that stays; 0: none
  int lookahead_every = 5;  // steps
  double lookahead_power = 0;
  double max_minutes = 0;  // 0: no limit
  Monitor monitor = Monitor::kEvalAccuracy;
  MonitorMode monitor_mode = MonitorMode::kAuto;
  int early_stop = 0;  // values of the monitor without a better one; 0: never
  double min_delta = 0;
  bool restore_best = true;
  bool drop_last = false;
  std::string device = "auto";
  int threads = 0;  // intra-op threads; 0: one per available core
  bool channels_last = true;
  bool cudnn_benchmark = true;
  bool create_on_device = true;
  bool keep_memory = true;
  bool inference_mode = true;
  bool late_metrics = true;
  bool detect_anomaly = false;
  std::string compiled;  // a package's path; empty: none
  GraphMode graph = GraphMode::kOff;
};

// Stages of a step that run beside the one before, each on a stream of its own: see
// batch_pipeline.h.
struct PipelineOptions {
  Toggle copy = Toggle::kAuto;  // to the device; auto: where that is a GPU
  bool augment = false;         // effects and normalisation
  bool encoder = false;         // a frozen one, a batch ahead of the decoder
  bool check = false;           // look for missing waits and the like, see stream_checker.h
  // REQUIRES: copy is resolved.
  bool any() const { return copy == Toggle::kOn || augment || encoder; }
};

struct CheckpointOptions {
  int every = 1;             // epochs; 0: not by epochs
  int every_steps = 0;       // 0: not by steps
  double every_minutes = 0;  // 0: not by time
  int keep = 3;              // newest ones kept
  bool keep_best = true;
  bool background = true;
};

struct Recipe {
  uint64_t seed = 0;
  DataOptions data;
  AugmentOptions augment;
  ModelOptions model;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  PrecisionOptions precision{.mode = PrecisionMode::kDefault};
  PipelineOptions pipeline;
  TrainOptions train;
  CheckpointOptions checkpoint;
  DistributedOptions distributed;
  WatchOptions watch;
};

// Reads a recipe file, then applies `overrides`, each "section.key=value" as after --set. An
// unknown key, a value of the wrong type or out of range fails with kUsage naming the key, the file
// and line (or the override), and the nearest known key. Relative paths inside stay as written.
Recipe load_recipe(Env& env, const std::string& path, std::span<const std::string> overrides = {});
// The same for text; `where` stands for the file's name in errors.
Recipe parse_recipe(const std::string& text, const std::string& where,
                    std::span<const std::string> overrides = {});

// Complete TOML that parse_recipe reads back to the same recipe.
std::string to_toml(const Recipe& recipe);

// What a run of several processes cannot be asked for besides; fails with kUsage. `train.device` is
// resolved.
void validate_world(const Recipe& recipe, int processes);

// One row of the option table, as text.
struct OptionInfo {
  std::string key;   // "train.batch"
  std::string type;  // "integer", "number", "true|false", "text", "a|b|c", "list of numbers|text"
  std::string unit;  // "" where it has none
  std::string default_value;  // as TOML
  std::string range;          // "" where any value of the type will do
  std::string doc;
};
std::vector<OptionInfo> recipe_options();

// The contents of docs/recipe.md.
std::string recipe_markdown();

}  // namespace saturate
