#include "record/sm_activity.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace saturate {
namespace {

constexpr int kSuccess = 0;
constexpr unsigned kVersion = 1;  // of both structures below
constexpr unsigned kSmUtil = 2;   // NVML_GPM_METRIC_SM_UTIL, percent

struct Support {  // nvmlGpmSupport_t
  unsigned version, is_supported;
};

struct Metric {  // nvmlGpmMetric_t
  unsigned id;
  int result;
  double value;
  const char *short_name, *long_name, *unit;
};

template <class Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct SmActivity::MetricsGet {
  unsigned version = kVersion, count = 1;
  Sample before, now;
  // Drivers differ in the array length they expect, and access `count` entries.
  std::array<Metric, 512> metrics{};
};

SmActivity::SmActivity(void* library, void* device) : device_(device) {
  int (*query)(void*, Support*) = nullptr;
  int (*allocate)(Sample*) = nullptr;
  Support support{kVersion, 0};
  const bool known = find(library, query, "nvmlGpmQueryDeviceSupport") &&
                     find(library, allocate, "nvmlGpmSampleAlloc") &&
                     find(library, release_, "nvmlGpmSampleFree") &&
                     find(library, take_, "nvmlGpmSampleGet") &&
                     find(library, compare_, "nvmlGpmMetricsGet");
  if (!known || query(device, &support) != kSuccess || support.is_supported == 0) return;
  if (allocate(&before_) != kSuccess) before_ = nullptr;
  if (allocate(&now_) != kSuccess) now_ = nullptr;
}

SmActivity::~SmActivity() {
  for (const Sample sample : {before_, now_})
    if (sample) release_(sample);
}

std::optional<double> SmActivity::read() {
  if (!before_ || !now_ || take_(device_, now_) != kSuccess) return std::nullopt;
  MetricsGet asked;
  asked.before = before_;
  asked.now = now_;
  asked.metrics[0].id = kSmUtil;
  const bool can_compare = std::exchange(has_before_, true);
  const bool known =
      can_compare && compare_(&asked) == kSuccess && asked.metrics[0].result == kSuccess;
  std::swap(before_, now_);
  return known ? std::optional(asked.metrics[0].value / 100) : std::nullopt;
}

}  // namespace saturate
