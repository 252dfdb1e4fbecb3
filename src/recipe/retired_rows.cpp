// Keys of earlier versions, as their rows were. A run's saved recipe may have them; in any other
// recipe they are an error, which names the key that replaced them.
#include "recipe/compound_rows.h"

namespace saturate {
namespace {

template <class Access>
RetiredRow old_flag(std::string key, Access access, std::string now) {
  return {flag(std::move(key), access, ""), std::move(now)};
}

template <class Access>
RetiredRow old_number(std::string key, Access access, Range range, std::string now) {
  if constexpr (std::is_integral_v<Member<Access>>)
    return {integer(std::move(key), access, range, "", ""), std::move(now)};
  else
    return {number(std::move(key), access, range, "", ""), std::move(now)};
}

template <class Access>
RetiredRow old_choice(std::string key, Access access, Choices<Access> choices, std::string now) {
  return {choice(std::move(key), access, std::move(choices), ""), std::move(now)};
}

}  // namespace

// Long: a table, a row a key.
const std::vector<RetiredRow>& retired_rows() {
  static const std::vector<RetiredRow> table = {
      old_flag(SATURATE_OPTION(train.channels_last), "debug.off"),
      old_flag(SATURATE_OPTION(train.cudnn_benchmark), "debug.off"),
      old_flag(SATURATE_OPTION(train.create_on_device), "debug.off"),
      old_flag(SATURATE_OPTION(train.keep_memory), "debug.off"),
      old_flag(SATURATE_OPTION(train.inference_mode), "debug.off"),
      old_flag(SATURATE_OPTION(train.late_metrics), "debug.off"),
      old_flag(SATURATE_OPTION(checkpoint.background), "debug.off"),
      old_flag(SATURATE_OPTION(optimizer.fused), "debug.off"),
      old_flag(SATURATE_OPTION(optimizer.set_to_none), "debug.off"),
      old_flag(SATURATE_OPTION(precision.tf32), "debug.off"),
      old_choice(SATURATE_OPTION(model.attention),
                 {{"sdpa", Attention::kSdpa}, {"naive", Attention::kNaive}}, "debug.off"),
      old_flag(SATURATE_OPTION(train.detect_anomaly), "debug.checks"),
      old_flag(SATURATE_OPTION(pipeline.check), "debug.checks"),
      old_flag(SATURATE_OPTION(train.eval_flip), "train.tta"),
      old_number(SATURATE_OPTION(train.eval_shift), {0, 16}, "train.tta"),
      old_number(SATURATE_OPTION(train.eval_every_steps), {0, 1 << 30}, "train.eval_every"),
      old_number(SATURATE_OPTION(train.effective_batch), {0, 1 << 20}, "train.batch"),
      old_number(SATURATE_OPTION(train.lookahead_every), {1, 1 << 20}, "train.lookahead"),
      old_number(SATURATE_OPTION(train.lookahead_power), {0, 16}, "train.lookahead"),
      old_choice(
          SATURATE_OPTION(train.monitor_mode),
          {{"auto", MonitorMode::kAuto}, {"min", MonitorMode::kMin}, {"max", MonitorMode::kMax}},
          "train.monitor"),
      old_number(SATURATE_OPTION(train.min_delta), {0, kInf}, "train.early_stop"),
      old_number(SATURATE_OPTION(checkpoint.every_steps), {0, 1 << 30}, "checkpoint.every"),
      old_number(SATURATE_OPTION(checkpoint.every_minutes), {0, kInf}, "checkpoint.every"),
      old_number(SATURATE_OPTION(watch.prometheus_port), {0, 65535}, "watch.prometheus"),
      {text(SATURATE_OPTION(watch.prometheus_address), ""), "watch.prometheus"},
      {text(SATURATE_OPTION(watch.prometheus_hosts), ""), "watch.prometheus"},
      old_number(SATURATE_OPTION(distributed.powersgd_rank), {1, 1024}, "distributed.compress"),
      old_number(SATURATE_OPTION_AS("data.shuffle_block", data.shuffle.block), {1, 1 << 30},
                 "data.shuffle"),
      old_choice(SATURATE_OPTION_AS("data.cache_form", data.cache.form),
                 {{"encoded", CacheForm::kEncoded}, {"decoded", CacheForm::kDecoded}},
                 "data.cache"),
      {text(SATURATE_OPTION_AS("data.stage_folder", data.stage.folder), ""), "data.stage"},
      old_number(SATURATE_OPTION(augment.padding), {0, 1024}, "augment.crop"),
      old_choice(SATURATE_OPTION(augment.pad_mode),
                 {{"zero", PadMode::kZero}, {"reflect", PadMode::kReflect}}, "augment.crop"),
      old_number(SATURATE_OPTION(augment.scale_min), {0, 1, true}, "augment.scale"),
      old_number(SATURATE_OPTION(augment.scale_max), {0, 1, true}, "augment.scale"),
      old_number(SATURATE_OPTION(augment.ratio_min), {0, 100, true}, "augment.ratio"),
      old_number(SATURATE_OPTION(augment.ratio_max), {0, 100, true}, "augment.ratio"),
      old_flag(SATURATE_OPTION(augment.flip_alternate), "augment.flip"),
      old_number(SATURATE_OPTION(augment.policy_ops), {1, 8}, "augment.policy"),
      old_number(SATURATE_OPTION(augment.policy_magnitude), {0, 30}, "augment.policy"),
      {low_and_high("augment.blur_sigma",
                    part("low", SATURATE_MEMBER(augment.blur_sigma_min), {0, 10, true}),
                    part("high", SATURATE_MEMBER(augment.blur_sigma_max), {0, 10, true}), "", ""),
       "augment.blur"},
      old_number(SATURATE_OPTION(augment.blur_sigma_min), {0, 10, true}, "augment.blur"),
      old_number(SATURATE_OPTION(augment.blur_sigma_max), {0, 10, true}, "augment.blur"),
      old_number(SATURATE_OPTION(augment.erase_scale_min), {0, 1, true}, "augment.erase_scale"),
      old_number(SATURATE_OPTION(augment.erase_scale_max), {0, 1, true}, "augment.erase_scale"),
      old_number(SATURATE_OPTION(augment.erase_ratio_min), {0, 100, true}, "augment.erase_ratio"),
      old_number(SATURATE_OPTION(augment.erase_ratio_max), {0, 100, true}, "augment.erase_ratio"),
      old_number(SATURATE_OPTION(optimizer.beta1), {0, 1}, "optimizer.betas"),
      old_number(SATURATE_OPTION(optimizer.beta2), {0, 1}, "optimizer.betas"),
      old_number(SATURATE_OPTION(schedule.momentum_low), {0, 1}, "schedule.cycle_momentum"),
      old_number(SATURATE_OPTION(schedule.momentum_high), {0, 1}, "schedule.cycle_momentum"),
      old_number(SATURATE_OPTION(schedule.cooldown), {0, 1 << 20}, "schedule.patience"),
      old_number(SATURATE_OPTION(precision.initial_scale), {1, 16777216}, "precision.loss_scale"),
      old_number(SATURATE_OPTION(precision.growth_interval), {1, 1 << 30}, "precision.loss_scale"),
  };
  return table;
}

}  // namespace saturate
