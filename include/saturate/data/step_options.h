// SPDX-License-Identifier: BSD-3-Clause
// The part of a recipe about the step: model, optimizer, schedule, precision. See recipe.h.
#pragma once

#include <string>
#include <vector>

namespace saturate {

enum class PrecisionMode { kFp32, kTf32, kBf16, kFp16, kAuto, kBf16O2, kFp16O2, kFp16O3, kDefault };
enum class SchedulePer { kStep, kEpoch };
enum class Attention { kSdpa, kNaive };

struct ModelOptions {
  std::string name = "resnet18";
  int classes = 0;  // 0: the training source's number
  double width = 1.0;
  double dropout = 0.2;                    // mobilenet_v2
  Attention attention = Attention::kSdpa;  // transformers
  std::string weights;                     // a file's path; empty: random initialisation
  std::string weights_prefix;              // prefix of the file's names; empty: detected
  std::vector<std::string> weights_match;  // patterns of names to load; empty: all
  std::string file;                        // torchscript
};

struct ModelTraits {
  bool is_file = false;        // the program in `file`
  bool takes_tensors = false;  // and not only images
  bool is_language = false;    // only tokens, for train.task=language
  bool takes_lengths = false;  // and tensors of varying length, with their mask
};
// Traits of the model that `options` names; the defaults if the table has none of that name.
ModelTraits traits_of(const ModelOptions& options);

struct OptimizerOptions {
  std::string name = "sgd";
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = true;
  double weight_decay = 5e-4;
  bool decay_norm_and_bias = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double trust = 0.001;                 // lars
  double layer_decay = 1;               // factor on lr from each layer to the previous one
  std::vector<std::string> lr_factors;  // "PATTERN=FACTOR"
  std::vector<std::string> freeze;      // patterns
  bool freeze_statistics = false;       // of frozen BatchNorms
  bool fused = true;
  bool set_to_none = true;
};

// torch's fused operator that is an optimizer's whole update: it can read the rate on the device.
enum class FusedUpdate { kNone, kSgd, kAdam, kAdamW };

struct OptimizerTraits {
  bool has_momentum = false;             // reads `momentum`
  bool nesterov_needs_momentum = false;  // refuses `nesterov` without, as torch does
  bool averages_momentum = false;        // a mean of gradients, not a sum, so it must be below 1
  bool is_adaptive = false;              // divides each element by its own root mean square
  FusedUpdate fused = FusedUpdate::kNone;
};
// As for a model.
OptimizerTraits traits_of(const OptimizerOptions& options);

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
  bool cycle_momentum = true;
  double momentum_low = 0.85, momentum_high = 0.95;  // onecycle
  std::string metric = "loss";                       // or one that the task names
  int patience = 10, cooldown = 0;                   // plateau: evaluations
  double threshold = 1e-4;                           // plateau: relative
};

// The use of schedule.every_epochs.
enum class EveryEpochs {
  kUnused,
  kScale,   // any time in which the rate falls by a factor
  kDrops,   // whole steps between drops, the first of them before the end
  kPeriod,  // whole steps, at most all
};

struct ScheduleTraits {
  EveryEpochs every = EveryEpochs::kUnused;
  bool has_milestones = false;
  bool is_cycle = false;  // of the rate, which starts with a rise, and of the momentum
  bool needs_evaluations = false;
};
// As for a model.
ScheduleTraits traits_of(const ScheduleOptions& options);

struct PrecisionOptions {
  PrecisionMode mode = PrecisionMode::kFp32;
  bool tf32 = true;              // except in fp32 mode
  double initial_scale = 65536;  // fp16: factor on the loss
  int growth_interval = 2000;    // fp16: steps
};

}  // namespace saturate
