#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "saturate/schedule.h"

namespace saturate {
namespace {

double constant(double /*progress*/, double /*final_lr*/) {
  return 1;
}

// SGDR (https://arxiv.org/abs/1608.03983), eq. 5, without restarts.
double cosine(double progress, double final_lr) {
  return final_lr + (1 - final_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

double linear(double progress, double final_lr) {
  return 1 + (final_lr - 1) * progress;
}

constexpr std::array<RegistryEntry<ScheduleCurve>, 3> kSchedules{{
    {"constant", "stays at optimizer.lr", constant},
    {"cosine", "half a cosine from optimizer.lr to schedule.final_lr of it", cosine},
    {"linear", "a straight line from optimizer.lr to schedule.final_lr of it", linear},
}};

}  // namespace

std::span<const RegistryEntry<ScheduleCurve>> schedules() {
  return kSchedules;
}

double schedule_factor(const ScheduleOptions& options, int64_t step, int64_t warmup,
                       int64_t total) {
  const auto curve = find_entry(schedules(), options.name, "schedule.name").make;
  if (step < warmup) return double(step + 1) / double(warmup);
  const double rest = double(std::max<int64_t>(1, total - warmup));
  return curve(std::min(1.0, double(step - warmup) / rest), options.final_lr);
}

}  // namespace saturate
