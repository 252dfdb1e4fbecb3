// A recipe: every setting of a run, as plain structs with their defaults.
//
// What each key means, its unit and its range stand in the one option table
// (src/base/recipe_table.cpp), which generates the TOML parser, `--set`, `saturate list options`,
// docs/recipe.md and the recipe.toml saved with a run. A member here without a row there cannot be
// set by a user, and a test says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

class Env;

enum class DecodeMode { kExact, kFast };
enum class OnError { kFail, kSkip };
enum class CropKind { kNone, kCenter, kRandomResized, kPad };
enum class PadMode { kZero, kReflect };
enum class Monitor { kEvalAccuracy, kEvalAccuracy5, kEvalLoss, kTrainAccuracy, kTrainLoss };
// Of the training epoch rather than of an evaluation.
inline bool is_training_metric(Monitor monitor) {
  return monitor == Monitor::kTrainAccuracy || monitor == Monitor::kTrainLoss;
}
enum class MonitorMode { kAuto, kMin, kMax };
enum class PrecisionMode { kFp32, kTf32, kBf16, kFp16, kAuto, kBf16O2, kFp16O2 };
enum class SchedulePer { kStep, kEpoch };
enum class PlateauMetric { kLoss, kAccuracy };

struct DataOptions {
  std::string source;
  std::string eval_source;
  int threads = 0;   // 0: one per available core
  int prefetch = 4;  // batches
  DecodeMode decode = DecodeMode::kExact;
  OnError on_error = OnError::kFail;
  bool shuffle = true;
};

struct AugmentOptions {
  int size = 0;  // output side, pixels; 0: the size of the first training image
  CropKind crop = CropKind::kNone;
  int padding = 4;  // kPad, pixels at size `size`
  PadMode pad_mode = PadMode::kZero;
  double scale_min = 0.08, scale_max = 1.0;         // kRandomResized: share of the image's area
  double ratio_min = 3.0 / 4, ratio_max = 4.0 / 3;  // kRandomResized: width over height
  double flip = 0.5;                                // probability of a horizontal flip
  double eval_resize = 1.0;  // evaluation: shorter side is size * eval_resize, then centre crop
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};
};

struct ModelOptions {
  std::string name = "resnet18";
  int classes = 0;  // 0: as many as the training source has
  double width = 1.0;
};

struct OptimizerOptions {
  std::string name = "sgd";
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = true;
  double weight_decay = 5e-4;
  bool decay_norm_and_bias = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double trust = 0.001;                 // lars
  double layer_decay = 1;               // factor on lr from one layer to the one before
  std::vector<std::string> lr_factors;  // "PATTERN=FACTOR"
  std::vector<std::string> freeze;      // patterns
};

struct ScheduleOptions {
  std::string name = "cosine";
  SchedulePer per = SchedulePer::kStep;
  double warmup_epochs = 0;
  double final_lr = 0;             // share of optimizer.lr
  double every_epochs = 0;         // 0: not given
  std::vector<double> milestones;  // epochs after the warm-up
  double gamma = 0.1;
  int restart_mult = 1;
  double power = 1;
  double rise = 0.3, initial_lr = 0.04;  // onecycle: share of the steps, share of optimizer.lr
  PlateauMetric metric = PlateauMetric::kLoss;
  int patience = 10, cooldown = 0;  // plateau: evaluations
  double threshold = 1e-4;          // plateau: relative
};

struct PrecisionOptions {
  PrecisionMode mode = PrecisionMode::kFp32;
  double initial_scale = 65536;  // fp16: factor on the loss
  int growth_interval = 2000;    // fp16: steps
};

struct TrainOptions {
  double epochs = 10;
  int batch = 128;
  int accumulate = 1;    // parts of a batch
  double clip_norm = 0;  // 0: no clipping
  int eval_batch = 0;    // 0: as train.batch
  double label_smoothing = 0;
  int eval_every = 1;        // epochs; 0: not by epochs
  int eval_every_steps = 0;  // 0: not by steps
  bool eval_flip = false;
  double ema = 0;          // decay of the averaged weights; 0: none
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
};

struct Recipe {
  uint64_t seed = 0;
  DataOptions data;
  AugmentOptions augment;
  ModelOptions model;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  PrecisionOptions precision;
  TrainOptions train;
  CheckpointOptions checkpoint;
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
