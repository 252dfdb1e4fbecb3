// Keys of earlier versions, as their rows were. A run's saved recipe may have them; in any other
// recipe they are an error, which names the key that took their place.
#include "recipe/compound_rows.h"

namespace saturate {
namespace {

template <class Access>
RetiredRow retired_flag(std::string key, Access access, std::string now) {
  return {flag(std::move(key), access, ""), std::move(now)};
}

template <class Access>
RetiredRow retired_number(std::string key, Access access, Range range, std::string now) {
  using T = std::remove_cvref_t<decltype(access(std::declval<const Recipe&>()))>;
  if constexpr (std::is_integral_v<T>)
    return {integer(std::move(key), access, range, "", ""), std::move(now)};
  else
    return {number(std::move(key), access, range, "", ""), std::move(now)};
}

template <class Access, class Enum>
RetiredRow retired_choice(std::string key, Access access,
                          std::vector<std::pair<std::string, Enum>> choices, std::string now) {
  return {choice(std::move(key), access, std::move(choices), ""), std::move(now)};
}

std::vector<RetiredRow> retired_switches() {
  const std::string off = "debug.off", checks = "debug.checks";
  return {
      retired_flag(SATURATE_OPTION(train.channels_last), off),
      retired_flag(SATURATE_OPTION(train.cudnn_benchmark), off),
      retired_flag(SATURATE_OPTION(train.create_on_device), off),
      retired_flag(SATURATE_OPTION(train.keep_memory), off),
      retired_flag(SATURATE_OPTION(train.inference_mode), off),
      retired_flag(SATURATE_OPTION(train.late_metrics), off),
      retired_flag(SATURATE_OPTION(checkpoint.background), off),
      retired_flag(SATURATE_OPTION(optimizer.fused), off),
      retired_flag(SATURATE_OPTION(optimizer.set_to_none), off),
      retired_flag(SATURATE_OPTION(precision.tf32), off),
      retired_choice(SATURATE_OPTION(model.attention),
                     std::vector<std::pair<std::string, Attention>>{{"sdpa", Attention::kSdpa},
                                                                    {"naive", Attention::kNaive}},
                     off),
      retired_flag(SATURATE_OPTION(train.detect_anomaly), checks),
      retired_flag(SATURATE_OPTION(pipeline.check), checks),
  };
}

std::vector<RetiredRow> retired_run_rows() {
  return {
      retired_flag(SATURATE_OPTION(train.eval_flip), "train.tta"),
      retired_number(SATURATE_OPTION(train.eval_shift), {0, 16}, "train.tta"),
      retired_number(SATURATE_OPTION(train.eval_every_steps), {0, 1 << 30}, "train.eval_every"),
      retired_number(SATURATE_OPTION(train.lookahead_every), {1, 1 << 20}, "train.lookahead"),
      retired_number(SATURATE_OPTION(train.lookahead_power), {0, 16}, "train.lookahead"),
      retired_choice(
          SATURATE_OPTION(train.monitor_mode),
          std::vector<std::pair<std::string, MonitorMode>>{
              {"auto", MonitorMode::kAuto}, {"min", MonitorMode::kMin}, {"max", MonitorMode::kMax}},
          "train.monitor"),
      retired_number(SATURATE_OPTION(checkpoint.every_steps), {0, 1 << 30}, "checkpoint.every"),
      retired_number(SATURATE_OPTION(checkpoint.every_minutes), {0, kInf}, "checkpoint.every"),
      retired_number(SATURATE_OPTION(watch.prometheus_port), {0, 65535}, "watch.prometheus"),
      {text(SATURATE_OPTION(watch.prometheus_address), ""), "watch.prometheus"},
      retired_number(SATURATE_OPTION(distributed.powersgd_rank), {1, 1024}, "distributed.compress"),
  };
}

std::vector<RetiredRow> retired_input_rows() {
  return {
      retired_number(SATURATE_OPTION_AS("data.shuffle_block", data.shuffle.block), {1, 1 << 30},
                     "data.shuffle"),
      retired_choice(SATURATE_OPTION_AS("data.cache_form", data.cache.form),
                     std::vector<std::pair<std::string, CacheForm>>{
                         {"encoded", CacheForm::kEncoded}, {"decoded", CacheForm::kDecoded}},
                     "data.cache"),
      {text(SATURATE_OPTION_AS("data.stage_folder", data.stage.folder), ""), "data.stage"},
      retired_number(SATURATE_OPTION(augment.padding), {0, 1024}, "augment.crop"),
      retired_choice(SATURATE_OPTION(augment.pad_mode),
                     std::vector<std::pair<std::string, PadMode>>{{"zero", PadMode::kZero},
                                                                  {"reflect", PadMode::kReflect}},
                     "augment.crop"),
      retired_number(SATURATE_OPTION(augment.scale_min), {0, 1, true}, "augment.scale"),
      retired_number(SATURATE_OPTION(augment.scale_max), {0, 1, true}, "augment.scale"),
      retired_number(SATURATE_OPTION(augment.ratio_min), {0, 100, true}, "augment.ratio"),
      retired_number(SATURATE_OPTION(augment.ratio_max), {0, 100, true}, "augment.ratio"),
      retired_flag(SATURATE_OPTION(augment.flip_alternate), "augment.flip"),
      retired_number(SATURATE_OPTION(augment.policy_ops), {1, 8}, "augment.policy"),
      retired_number(SATURATE_OPTION(augment.policy_magnitude), {0, 30}, "augment.policy"),
      retired_number(SATURATE_OPTION(augment.blur_sigma_min), {0, 10, true}, "augment.blur_sigma"),
      retired_number(SATURATE_OPTION(augment.blur_sigma_max), {0, 10, true}, "augment.blur_sigma"),
      retired_number(SATURATE_OPTION(augment.erase_scale_min), {0, 1, true}, "augment.erase_scale"),
      retired_number(SATURATE_OPTION(augment.erase_scale_max), {0, 1, true}, "augment.erase_scale"),
      retired_number(SATURATE_OPTION(augment.erase_ratio_min), {0, 100, true},
                     "augment.erase_ratio"),
      retired_number(SATURATE_OPTION(augment.erase_ratio_max), {0, 100, true},
                     "augment.erase_ratio"),
  };
}

std::vector<RetiredRow> retired_step_rows() {
  return {
      retired_number(SATURATE_OPTION(optimizer.beta1), {0, 1}, "optimizer.betas"),
      retired_number(SATURATE_OPTION(optimizer.beta2), {0, 1}, "optimizer.betas"),
      retired_number(SATURATE_OPTION(schedule.momentum_low), {0, 1}, "schedule.cycle_momentum"),
      retired_number(SATURATE_OPTION(schedule.momentum_high), {0, 1}, "schedule.cycle_momentum"),
      retired_number(SATURATE_OPTION(precision.initial_scale), {1, 16777216},
                     "precision.loss_scale"),
      retired_number(SATURATE_OPTION(precision.growth_interval), {1, 1 << 30},
                     "precision.loss_scale"),
  };
}

}  // namespace

const std::vector<RetiredRow>& retired_rows() {
  static const std::vector<RetiredRow> table = [] {
    std::vector<RetiredRow> all;
    for (const auto& rows :
         {retired_switches(), retired_run_rows(), retired_input_rows(), retired_step_rows()})
      all.insert(all.end(), rows.begin(), rows.end());
    return all;
  }();
  return table;
}

}  // namespace saturate
