// SPDX-License-Identifier: BSD-3-Clause
// A recipe: all settings of a run, as plain structs with defaults.
//
// The option table (src/*/*_rows.cpp) holds each key's meaning, unit and range, and generates
// the TOML parser, `--set`, `saturate list options`, docs/recipe.md and a run's saved recipe.toml.
// A member here without a row there cannot be set by a user, which a test detects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/data_options.h"
#include "saturate/data/step_options.h"
#include "saturate/data/world.h"

namespace saturate {

class Env;

enum class TaskKind {
  kAuto,        // determined by the data
  kClassify,    // one class for each sample
  kSegment,     // one class for each pixel or voxel
  kRegress,     // numbers
  kMultilabel,  // any number of labels for each sample
  kLanguage     // the token after each token
};
// The loss of a difference to the target: its square, its absolute value, or half its square below
// 1 and its absolute value above.
enum class RegressionLoss { kMse, kL1, kHuber };
// Whether train.monitor is a metric of the training epoch, not of an evaluation.
inline bool is_training_metric(const std::string& monitor) {
  return monitor.starts_with("train_");
}
enum class MonitorMode { kAuto, kMin, kMax };
// Whether a GPU's step is captured once and then replayed.
enum class GraphMode { kOff, kAuto };
// For a key that is false, true or "auto".
enum class Toggle { kOff, kOn, kAuto };

// The value of an integer member for the recipe's "auto".
inline constexpr int kAutomatic = -1;

struct TrainOptions {
  TaskKind task = TaskKind::kAuto;
  RegressionLoss loss = RegressionLoss::kMse;
  double epochs = 10;
  int batch = 128;              // kAutomatic: as many images as fit
  int effective_batch = 0;      // with kAutomatic; 0: as many as fit at once
  int accumulate = 1;           // micro-batches per batch
  int checkpoint_segments = 0;  // 0: none; kAutomatic
  double memory_gb = 0;         // GiB for tensors; 0: no limit
  double clip_norm = 0;         // 0: no clipping
  int eval_batch = 0;           // 0: as train.batch, or one micro-batch if that was kAutomatic
  double label_smoothing = 0;
  int eval_every = 1;        // epochs; 0: not by epochs
  int eval_every_steps = 0;  // 0: not by steps
  bool eval_flip = false;
  int eval_shift = 0;       // pixels
  double ema = 0;           // decay of the averaged weights; 0: none
  double swa = 0;           // share of the run after which epochs' ends are averaged; 0: none
  double lookahead = 0;     // share of the slow weights that is kept; 0: none
  int lookahead_every = 5;  // steps
  double lookahead_power = 0;
  double max_minutes = 0;        // 0: no limit
  std::string monitor = "auto";  // "eval_NAME" or "train_NAME"; "auto": by the task
  MonitorMode monitor_mode = MonitorMode::kAuto;
  int early_stop = 0;  // values of the monitor without improvement; 0: never
  double min_delta = 0;
  bool restore_best = true;
  bool drop_last = false;
  std::string device = "auto";
  int threads = 0;  // intra-op threads; 0: one per available core
  bool channels_last = true;
  bool cudnn_benchmark = false;
  bool create_on_device = true;
  bool keep_memory = true;
  bool inference_mode = true;
  bool late_metrics = true;
  bool detect_anomaly = false;
  std::string compiled;  // a package's path; empty: none
  GraphMode graph = GraphMode::kOff;
};

// Stages of a step that overlap the previous one, each on its own stream: see batch_pipeline.h.
struct PipelineOptions {
  Toggle copy = Toggle::kAuto;  // to the device; auto: if it is a GPU
  bool augment = false;         // effects and normalisation
  bool encoder = false;         // a frozen one, one batch ahead of the decoder
  bool check = false;           // detect missing waits and similar errors, see stream.h
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

struct WatchOptions {
  int every = 10;  // steps between two "step" lines of metrics.jsonl
  bool progress = true;
  // Additional outputs of records; see sinks.h.
  bool tensorboard = true;
  bool csv = false;
  int prometheus_port = 0;  // 0: none
  std::string prometheus_address = "127.0.0.1";
  std::string prometheus_hosts;  // allowed Host names, separated by commas; "*": any
  double telemetry_hz = 1;       // readings a second; 0: none
  int samples = 16;              // images saved for the report: of training, and of mistakes
  int histograms = 0;            // steps between histograms; 0: none
  std::string trace;             // see parse_trace(); empty: none
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

// Reads a recipe file, then applies `overrides`, each "section.key=value" as in --set. An unknown
// key, or a value of the wrong type or out of range, fails with kUsage naming the key, the file and
// line (or the override), and the nearest known key. Relative paths inside are not changed.
Recipe load_recipe(Env& env, const std::string& path, std::span<const std::string> overrides = {});
// The same for text; `where` replaces the file's name in errors.
Recipe parse_recipe(const std::string& text, const std::string& where,
                    std::span<const std::string> overrides = {});

// The same for a run's own recipe, as to_toml() wrote it in this version or an earlier one: keys of
// earlier versions have the meaning that they had. Elsewhere they are an error that names the key
// to use instead.
Recipe load_saved_recipe(Env& env, const std::string& path,
                         std::span<const std::string> overrides = {});
Recipe parse_saved_recipe(const std::string& text, const std::string& where,
                          std::span<const std::string> overrides = {});

// The reason why a file cannot be any run's recipe: it cannot be read, is not TOML, or names no
// data.source. Empty if it can; a wrong key or value is for load_recipe() to find.
std::string recipe_damage(Env& env, const std::string& path);

// Complete TOML that parse_recipe parses to the same recipe.
std::string to_toml(const Recipe& recipe);

// "KEY=VALUE", an override that gives `key` the value that it has in `recipe`.
std::string setting_of(const Recipe& recipe, const std::string& key);

// Checks for options that several processes do not support; fails with kUsage. `train.device` is
// resolved.
void validate_world(const Recipe& recipe, int processes);

// One row of the option table, as text.
struct OptionInfo {
  std::string key;   // "train.batch"
  std::string type;  // "integer", "number", "true|false", "text", "a|b|c", "list of numbers|text"
  std::string unit;  // "" if it has none
  std::string default_value;  // as TOML
  std::string range;          // "" if any value of the type is allowed
  std::string doc;
};
std::vector<OptionInfo> recipe_options();

// The contents of docs/recipe.md.
std::string recipe_markdown();

}  // namespace saturate
