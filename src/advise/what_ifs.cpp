#include "advise/what_ifs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "recipe/option_row.h"
#include "step/graphed_step.h"

namespace saturate {
namespace {

constexpr double kCheckpointShare = 0.01;  // of the time, that saving may take
constexpr double kLeastFactor = 10;        // on the time between saves that are tried
constexpr int kRareRecord = 10;            // steps between two
constexpr double kMostOnDevice = 1e9;      // bytes of images that a trial puts on the GPU

// A list of the changes that apply.
class WhatIfs {
 public:
  void add_if(bool applies, Cause cause, Alters alters, std::vector<std::string> settings,
              std::string note = "") {
    if (applies) list.push_back({cause, std::move(settings), alters, std::move(note)});
  }
  void skip(std::string why) { list.back().skipped = std::move(why); }

  std::vector<WhatIf> list;
};

// A setting for each effect that the recipe has on, which switches it off: all numbers of [augment]
// that are 0 by default.
std::vector<std::string> effects_off(const Recipe& recipe) {
  std::vector<std::string> settings;
  if (recipe.augment.policy != Policy::kNone) settings.push_back("augment.policy=none");
  const OptionValue off = 0.0;
  const Recipe defaults;
  for (const OptionRow& row : option_table())
    if (row.key.starts_with("augment.") && row.get(defaults) == off && row.get(recipe) != off)
      settings.push_back(row.key + "=0");
  return settings;
}

// `settings`, and the CPU as the place of decoding if they exclude the GPU.
std::vector<std::string> decoding_on_cpu(const Recipe& recipe, std::vector<std::string> settings) {
  if (recipe.data.decode_device == DecodeDevice::kCuda)
    settings.push_back("data.decode_device=cpu");
  return settings;
}

// Keeps every sample in memory, encoded or decoded.
void add_caches(const Recipe& recipe, const Machine& machine, const SourceFacts& source,
                WhatIfs& what_ifs) {
  const CacheOptions& cache = recipe.data.cache;
  const double budget = cache.gb > 0 ? cache.gb * 1e9 : machine.memory_bytes / 2;
  const auto add = [&](bool applies, Cause cause, std::vector<std::string> settings, Alters alters,
                       double bytes) {
    const double needed = bytes * double(source.samples);
    what_ifs.add_if(
        applies, cause, alters, std::move(settings),
        fmt::format("from the second epoch on, with {:.1f} GB of memory", needed * 1e-9));
    if (applies && needed > budget)
      what_ifs.skip(fmt::format("the samples take {:.1f} GB, and the cache may take {:.1f}",
                                needed * 1e-9, budget * 1e-9));
  };
  const bool kept = cache.mode == CacheMode::kRam;
  add(!kept, Cause::kStorage, {"data.cache=ram"}, Alters::kNothing, source.bytes);
  const bool fast = recipe.data.decode == DecodeMode::kFast;
  std::vector<std::string> decoded = {"data.cache=ram:decoded"};
  if (fast) decoded = decoding_on_cpu(recipe, {"data.cache=ram:decoded", "data.decode=exact"});
  add(source.is_encoded && !(kept && cache.form == CacheForm::kDecoded), Cause::kDecode, decoded,
      fast ? Alters::kRounding : Alters::kNothing, source.pixel_bytes);
}

// Decodes on the GPU what SampleReader packs; a damaged sample then ends the run.
void add_device_decoding(const Recipe& recipe, const SourceFacts& source, WhatIfs& what_ifs) {
  const CacheOptions& cache = recipe.data.cache;
  const bool decoded = cache.mode == CacheMode::kRam && cache.form == CacheForm::kDecoded;
  const CropKind crop = recipe.augment.crop;
  const bool can_be = (source.is_segmented || source.is_indexed) &&
                      recipe.data.decode_device != DecodeDevice::kCuda &&
                      recipe.data.on_error != OnError::kSkip && cache.mode != CacheMode::kDevice &&
                      !decoded && crop != CropKind::kPad && crop != CropKind::kLetterbox;
  const bool fast = recipe.data.decode == DecodeMode::kFast;
  const bool there = recipe.augment.device != AugmentDevice::kCpu;
  std::vector<std::string> settings = {"data.decode_device=cuda"};
  if (!fast) settings.push_back("data.decode=fast");
  if (!there) settings.push_back("augment.device=cuda");
  what_ifs.add_if(can_be, Cause::kDecode, fast && there ? Alters::kNothing : Alters::kRounding,
                  std::move(settings));
}

// Moves work between the loader's threads and the GPU.
void add_device_input(const Recipe& recipe, const Machine& machine, const SourceFacts& source,
                      WhatIfs& what_ifs) {
  if (!machine.on_gpu || !machine.augments || source.is_tensors) return;
  const AugmentOptions& augment = recipe.augment;
  const bool resident = recipe.data.cache.mode == CacheMode::kDevice;
  const bool there = augment.device != AugmentDevice::kCpu;
  add_device_decoding(recipe, source, what_ifs);
  what_ifs.add_if(!there, Cause::kAugmentation, Alters::kRounding, {"augment.device=cuda"});
  what_ifs.add_if(there && !resident && !recipe.pipeline.augment, Cause::kAugmentation,
                  Alters::kRounding, decoding_on_cpu(recipe, {"augment.device=cpu"}),
                  "if cores are idle");
  what_ifs.add_if(there && !recipe.pipeline.augment, Cause::kAugmentation, Alters::kNothing,
                  {"pipeline.augment=true"});
  const bool can_be = !resident && augment.crop != CropKind::kRandomResized &&
                      augment.size_changes.empty() && recipe.train.task != TaskKind::kSegment;
  const double bytes = 3.0 * augment.size.area() * double(source.samples);
  std::vector<std::string> settings = {"data.cache=device"};
  if (!there) settings.push_back("augment.device=cuda");
  what_ifs.add_if(can_be, Cause::kStorage, Alters::kRounding, std::move(settings),
                  fmt::format("with {:.1f} GB of the GPU's memory", bytes * 1e-9));
  if (can_be && bytes > kMostOnDevice)
    what_ifs.skip(
        fmt::format("a trial puts at most {:.0f} GB of images there, and these take {:.1f}",
                    kMostOnDevice * 1e-9, bytes * 1e-9));
}

void add_checkpoints(const Recipe& recipe, double share, WhatIfs& what_ifs) {
  const CheckpointOptions& checkpoint = recipe.checkpoint;
  const double factor =
      std::max(kLeastFactor, share < 1 ? std::ceil(share / (1 - share) / kCheckpointShare) : 0);
  const bool is_slow = share > kCheckpointShare;
  const bool applies = checkpoint.every_steps > 0 ||
                       (is_slow && (checkpoint.every_minutes > 0 || checkpoint.every > 0));
  const auto save_rarely = [&](Recipe& rarer) {
    CheckpointOptions& each = rarer.checkpoint;
    each.every_steps = int(std::min(1e9, each.every_steps * factor));
    if (is_slow) each.every_minutes *= factor;
    if (is_slow) each.every = int(std::min(1e6, each.every * factor));
  };
  what_ifs.add_if(applies, Cause::kCheckpointIo, Alters::kNothing,
                  {setting_after(recipe, "checkpoint.every", save_rarely)},
                  "a failure loses proportionally more work");
  what_ifs.add_if(!checkpoint.background && share > 0, Cause::kCheckpointIo, Alters::kNothing,
                  {setting_after(recipe, "debug.off",
                                 [](Recipe& each) { each.checkpoint.background = true; })});
}

// On a GPU a record waits for the device, which is another cause.
void add_records(const WatchOptions& watch, const Machine& machine, WhatIfs& what_ifs) {
  what_ifs.add_if(!machine.on_gpu && watch.every < kRareRecord, Cause::kLogging, Alters::kNothing,
                  {fmt::format("watch.every={}", kRareRecord)});
  what_ifs.add_if(
      watch.histograms > 0, Cause::kLogging, Alters::kNothing,
      {fmt::format("watch.histograms={:.0f}", std::min(1e9, watch.histograms * kLeastFactor))});
}

void add_precisions(PrecisionMode mode, const Machine& machine, WhatIfs& what_ifs) {
  const bool wide = mode == PrecisionMode::kFp32 || mode == PrecisionMode::kTf32;
  const auto add = [&](bool applies, const char* name) {
    what_ifs.add_if(applies, Cause::kPrecision, Alters::kRounding,
                    {std::string("precision.mode=") + name});
  };
  add(wide && machine.has_bf16, "bf16");
  add(wide && machine.on_gpu, "fp16");
  add(mode == PrecisionMode::kFp32 && machine.on_gpu, "tf32");
  add(!wide && !machine.on_gpu && !machine.has_bf16, "fp32");
}

// Listed even if it cannot be tried: the reason may be worth removing.
void add_graph(const Recipe& recipe, const Machine& machine, WhatIfs& what_ifs) {
  if (recipe.train.graph != GraphMode::kOff) return;
  what_ifs.add_if(true, Cause::kLaunchOverhead, Alters::kRounding, {"train.graph=auto"});
  const std::string why = machine.on_gpu ? why_no_graph(recipe, /*processes=*/1) : "needs a GPU";
  if (!why.empty()) what_ifs.skip(why);
}

void add_batches(const Recipe& recipe, const SourceFacts& source, WhatIfs& what_ifs) {
  const int batch = recipe.train.batch;
  const std::string note = "changes the training: adjust optimizer.lr, and compare the loss";
  what_ifs.add_if(size_t(batch) * 2 <= source.samples, Cause::kSmallBatch, Alters::kTraining,
                  {fmt::format("train.batch={}", batch * 2)}, note);
  what_ifs.add_if(batch >= 4, Cause::kMemory, Alters::kTraining,
                  {fmt::format("train.batch={}", batch / 2)}, note);
}

// For the switches of [debug] in which two recipes differ.
Cause cause_of_switches(const Recipe& a, const Recipe& b) {
  const auto differs = [&](auto section, auto member) {
    return (a.*section).*member != (b.*section).*member;
  };
  const auto train = [&](auto member) { return differs(&Recipe::train, member); };
  const auto optimizer = [&](auto member) { return differs(&Recipe::optimizer, member); };
  if (train(&TrainOptions::keep_memory)) return Cause::kMemory;
  if (train(&TrainOptions::channels_last) || train(&TrainOptions::cudnn_benchmark))
    return Cause::kLayout;
  if (optimizer(&OptimizerOptions::fused) || optimizer(&OptimizerOptions::set_to_none))
    return Cause::kLaunchOverhead;
  if (differs(&Recipe::checkpoint, &CheckpointOptions::background)) return Cause::kCheckpointIo;
  if (differs(&Recipe::precision, &PrecisionOptions::tf32)) return Cause::kPrecision;
  if (train(&TrainOptions::late_metrics) || train(&TrainOptions::create_on_device) ||
      train(&TrainOptions::detect_anomaly))
    return Cause::kHostSync;
  return Cause::kComputeBound;
}

}  // namespace

bool is_input(Cause cause) {
  return cause == Cause::kInputThreads || cause == Cause::kDecode || cause == Cause::kStorage ||
         cause == Cause::kAugmentation;
}

std::vector<WhatIf> input_what_ifs(const Recipe& recipe, const Machine& machine,
                                   const SourceFacts& source) {
  WhatIfs what_ifs;
  const int threads = recipe.data.threads;
  // More threads than cores help if they wait for storage.
  what_ifs.add_if(true, Cause::kInputThreads, Alters::kNothing,
                  {fmt::format("data.threads={}", std::max(machine.cores, threads * 2))});
  what_ifs.add_if(source.has_jpeg && recipe.data.decode == DecodeMode::kExact &&
                      recipe.augment.crop != CropKind::kPad &&
                      !(recipe.data.cache.mode != CacheMode::kNone &&
                        recipe.data.cache.form == CacheForm::kDecoded),
                  Cause::kDecode, Alters::kRounding, {"data.decode=fast"});
  const auto off = effects_off(recipe);
  what_ifs.add_if(!off.empty(), Cause::kAugmentation, Alters::kTraining, off,
                  "changes the training: less augmentation");
  add_caches(recipe, machine, source, what_ifs);
  add_device_input(recipe, machine, source, what_ifs);
  what_ifs.add_if(machine.on_gpu && recipe.pipeline.copy == Toggle::kOff, Cause::kCopy,
                  Alters::kNothing, {"pipeline.copy=true"});
  what_ifs.add_if(threads > 1, Cause::kInputThreads, Alters::kNothing,
                  {fmt::format("data.threads={}", threads / 2)});
  what_ifs.add_if(true, Cause::kInputThreads, Alters::kNothing,
                  {fmt::format("data.prefetch={}", recipe.data.prefetch * 2)});
  return std::move(what_ifs.list);
}

std::vector<WhatIf> step_what_ifs(const Recipe& recipe, const Machine& machine,
                                  const SourceFacts& source, double checkpoint_share) {
  const TrainOptions& train = recipe.train;
  WhatIfs what_ifs;
  const auto add = [&](bool applies, Cause cause, Alters alters, const std::string& setting) {
    what_ifs.add_if(applies, cause, alters, {setting});
  };
  const auto switched_on = [&](const auto& change) {
    return setting_after(recipe, "debug.off", change);
  };
  add(train.detect_anomaly, Cause::kHostSync, Alters::kNothing,
      setting_after(recipe, "debug.checks",
                    [](Recipe& each) { each.train.detect_anomaly = false; }));
  add(!train.late_metrics, Cause::kHostSync, Alters::kNothing,
      switched_on([](Recipe& each) { each.train.late_metrics = true; }));
  add(machine.on_gpu && recipe.watch.every < kRareRecord, Cause::kHostSync, Alters::kNothing,
      fmt::format("watch.every={}", kRareRecord));
  add(machine.on_gpu && !train.create_on_device, Cause::kHostSync, Alters::kNothing,
      switched_on([](Recipe& each) { each.train.create_on_device = true; }));
  add_records(recipe.watch, machine, what_ifs);
  add_checkpoints(recipe, checkpoint_share, what_ifs);
  add(train.checkpoint_segments > 0, Cause::kMemory, Alters::kNothing,
      "train.checkpoint_segments=0");
  add(train.accumulate > 1, Cause::kMemory, Alters::kTraining, "train.accumulate=1");
  add(!machine.on_gpu && !train.keep_memory, Cause::kMemory, Alters::kNothing,
      switched_on([](Recipe& each) { each.train.keep_memory = true; }));
  add(!train.channels_last, Cause::kLayout, Alters::kRounding,
      switched_on([](Recipe& each) { each.train.channels_last = true; }));
  add(machine.on_gpu && train.cudnn_benchmark, Cause::kLayout, Alters::kRounding,
      switched_on([](Recipe& each) { each.train.cudnn_benchmark = false; }));
  add_precisions(recipe.precision.mode, machine, what_ifs);
  add(!recipe.optimizer.fused, Cause::kLaunchOverhead, Alters::kRounding,
      switched_on([](Recipe& each) { each.optimizer.fused = true; }));
  add(!recipe.optimizer.set_to_none, Cause::kLaunchOverhead, Alters::kNothing,
      switched_on([](Recipe& each) { each.optimizer.set_to_none = true; }));
  add(!train.compiled.empty(), Cause::kLaunchOverhead, Alters::kRounding, "train.compiled=");
  add_graph(recipe, machine, what_ifs);
  add_batches(recipe, source, what_ifs);
  add(!machine.on_gpu && train.threads != machine.cores, Cause::kComputeBound, Alters::kRounding,
      fmt::format("train.threads={}", machine.cores));
  return std::move(what_ifs.list);
}

std::vector<WhatIf> single_effects(const Recipe& recipe) {
  WhatIfs what_ifs;
  const auto off = effects_off(recipe);
  for (const std::string& setting : off)
    what_ifs.add_if(off.size() > 1, Cause::kAugmentation, Alters::kTraining, {setting},
                    "changes the training: less augmentation");
  return std::move(what_ifs.list);
}

double evaluations_of(const TrainOptions& train, double epochs, double epoch_steps) {
  double times = 0;
  bool at_end = false;  // one of them is due there anyway
  const auto add = [&](double length, double every) {
    if (every <= 0) return;
    const double whole = std::floor(length / every + 1e-9);
    times += whole;
    at_end = at_end || whole * every >= length - 1e-9 * length;
  };
  add(epochs * epoch_steps, double(train.eval_every_steps));
  add(epochs, double(train.eval_every));
  return at_end ? times : times + 1;
}

double saves_of(const CheckpointOptions& checkpoint, double epochs, double epoch_steps,
                double run_s) {
  const auto times = [](double length, double every) { return every > 0 ? length / every : 0; };
  return times(epochs * epoch_steps, double(checkpoint.every_steps)) +
         times(run_s / 60, checkpoint.every_minutes) +
         std::floor(times(epochs, double(checkpoint.every)) + 1e-9);
}

std::vector<WhatIf> asked_what_ifs(const Recipe& recipe, const std::vector<std::string>& settings) {
  // The first prefix that matches decides.
  static constexpr std::pair<std::string_view, Cause> kCauses[] = {
      {"data.threads", Cause::kInputThreads},
      {"data.prefetch", Cause::kInputThreads},
      {"data.decode", Cause::kDecode},
      {"data.cache=ram:decoded", Cause::kDecode},
      {"data.", Cause::kStorage},
      {"augment.", Cause::kAugmentation},
      {"pipeline.augment", Cause::kAugmentation},
      {"pipeline.copy", Cause::kCopy},
      {"checkpoint.", Cause::kCheckpointIo},
      {"watch.every", Cause::kHostSync},
      {"watch.", Cause::kLogging},
      {"precision.", Cause::kPrecision},
      {"train.checkpoint_", Cause::kMemory},
      {"train.accumulate", Cause::kMemory},
      {"train.batch", Cause::kSmallBatch},
      {"train.compiled", Cause::kLaunchOverhead},
      {"train.graph", Cause::kLaunchOverhead}};
  WhatIfs what_ifs;
  for (const std::string& setting : settings) {
    const auto* known = std::ranges::find_if(
        kCauses, [&](const auto& entry) { return setting.starts_with(entry.first); });
    Cause cause = known == std::end(kCauses) ? Cause::kComputeBound : known->second;
    try {
      if (setting.starts_with("debug."))
        cause = cause_of_switches(
            recipe, parse_recipe(to_toml(recipe), "--try", std::vector<std::string>{setting}));
    } catch (const Error&) {
      // As it is measured, without evaluation, the recipe may break a rule.
    }
    what_ifs.add_if(true, cause, Alters::kTraining, {setting}, "requested by --try");
  }
  return std::move(what_ifs.list);
}

}  // namespace saturate
