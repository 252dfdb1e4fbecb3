#include "record/nvml.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace saturate {
namespace {

using Result = int;  // nvmlReturn_t
constexpr Result kSuccess = 0;
using Device = void*;  // nvmlDevice_t

struct Utilization {
  unsigned gpu, memory;  // percent
};
struct MemoryInfo {
  unsigned long long total, free, used;  // bytes
};
constexpr int kClockSm = 1;         // NVML_CLOCK_SM
constexpr int kTemperatureGpu = 0;  // NVML_TEMPERATURE_GPU

// nvmlClocksEventReason*: throttle reasons, without an idle GPU and user-set clocks.
struct Reason {
  unsigned long long bit;
  const char* text;
};
constexpr std::array<Reason, 6> kReasons = {{{0x4, "power cap"},
                                             {0x8, "hardware slowdown"},
                                             {0x20, "heat"},
                                             {0x40, "heat (hardware)"},
                                             {0x80, "power brake"},
                                             {0x10, "another GPU of its group"}}};

// Entry `index` of a list "0,2" or "GPU-uuid,...".
std::string entry_of(const std::string& list, int index) {
  size_t begin = 0;
  for (int i = 0; i < index && begin != std::string::npos; ++i) {
    const auto comma = list.find(',', begin);
    begin = comma == std::string::npos ? comma : comma + 1;
  }
  return begin == std::string::npos ? "" : list.substr(begin, list.find(',', begin) - begin);
}

template <class Function>
bool find_symbol(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// False too if the library has no such function.
template <class Function, class... Arguments>
bool ask(Function* function, Arguments... arguments) {
  return function && function(arguments...) == kSuccess;
}

constexpr unsigned kVersion = 1;  // of nvmlGpmSupport_t and nvmlGpmMetricsGet_t
constexpr unsigned kSmUtil = 2;   // NVML_GPM_METRIC_SM_UTIL, percent
using GpmSample = void*;          // nvmlGpmSample_t

struct GpmSupport {  // nvmlGpmSupport_t
  unsigned version, is_supported;
};

struct GpmMetric {  // nvmlGpmMetric_t
  unsigned id;
  int result;
  double value;
  const char *short_name, *long_name, *unit;
};

struct GpmMetricsGet {  // nvmlGpmMetricsGet_t
  unsigned version = kVersion, count = 1;
  GpmSample before, now;
  // Drivers differ in the array length they expect, and access `count` entries.
  std::array<GpmMetric, 512> metrics{};
};

// Utilisation of a GPU's multiprocessors (SMs), from NVML's GPU Performance Monitoring: Hopper and
// later. gpu_busy says that some kernel ran; this, how much of the GPU it used. The library and the
// device must outlive this.
class SmActivity {
 public:
  // read() returns nothing if the library or the device is too old.
  SmActivity(void* library, Device device) : device_(device) {
    Result (*query)(Device, GpmSupport*) = nullptr;
    Result (*allocate)(GpmSample*) = nullptr;
    GpmSupport support{kVersion, 0};
    const bool known = find_symbol(library, query, "nvmlGpmQueryDeviceSupport") &&
                       find_symbol(library, allocate, "nvmlGpmSampleAlloc") &&
                       find_symbol(library, release_, "nvmlGpmSampleFree") &&
                       find_symbol(library, take_, "nvmlGpmSampleGet") &&
                       find_symbol(library, compare_, "nvmlGpmMetricsGet");
    if (!known || query(device, &support) != kSuccess || support.is_supported == 0) return;
    if (allocate(&before_) != kSuccess) before_ = nullptr;
    if (allocate(&now_) != kSuccess) now_ = nullptr;
  }
  ~SmActivity() {
    for (const GpmSample sample : {before_, now_})
      if (sample) release_(sample);
  }
  SmActivity(const SmActivity&) = delete;
  SmActivity& operator=(const SmActivity&) = delete;

  // Mean share of the SMs that had work since the last call; empty at the first.
  std::optional<double> read() {
    if (!before_ || !now_ || take_(device_, now_) != kSuccess) return std::nullopt;
    GpmMetricsGet asked;
    asked.before = before_;
    asked.now = now_;
    asked.metrics[0].id = kSmUtil;
    const bool can_compare = std::exchange(has_before_, true);
    const bool known =
        can_compare && compare_(&asked) == kSuccess && asked.metrics[0].result == kSuccess;
    std::swap(before_, now_);
    return known ? std::optional(asked.metrics[0].value / 100) : std::nullopt;
  }

 private:
  Result (*take_)(Device, GpmSample) = nullptr;
  Result (*compare_)(GpmMetricsGet*) = nullptr;
  Result (*release_)(GpmSample) = nullptr;
  const Device device_;
  GpmSample before_ = nullptr, now_ = nullptr;
  bool has_before_ = false;
};

struct Peak {
  std::string_view part;    // of the name; the first match counts
  double half, tf32, fp32;  // TFLOP/s without sparsity
};

// NVIDIA's data sheets: "H200 Tensor Core GPU", "H100 Tensor Core GPU", "A100 Tensor Core GPU",
// "L40S", "L4 Tensor Core GPU" and "A10 Tensor Core GPU". Figures given with sparsity are halved.
constexpr std::array<Peak, 9> kPeaks = {{{"H200 NVL", 835.5, 417.5, 60},
                                         {"H200", 989.5, 494.5, 67},
                                         {"H100 PCIe", 756.5, 378, 51},
                                         {"H100 NVL", 835.5, 417.5, 60},
                                         {"H100", 989.5, 494.5, 67},
                                         {"A100", 312, 156, 19.5},
                                         {"L40S", 362, 183, 91.6},
                                         {"L4", 121, 60, 30.3},
                                         {"A10", 125, 62.5, 31.2}}};

// "A10" is in "A100-SXM4-80GB", but not as a word.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_alnum = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_alnum(text[at - 1])) && (end == text.size() || !is_alnum(text[end])))
      return true;
  }
  return false;
}

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  bool is_initialised = false;
  Device device = nullptr;
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  Result (*by_index)(unsigned, Device*) = nullptr;
  Result (*by_uuid)(const char*, Device*) = nullptr;
  Result (*get_name)(Device, char*, unsigned) = nullptr;
  Result (*utilization)(Device, Utilization*) = nullptr;
  Result (*memory)(Device, MemoryInfo*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;  // milliwatts
  Result (*clock)(Device, int, unsigned*) = nullptr;
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*reasons)(Device, unsigned long long*) = nullptr;
  std::optional<SmActivity> activity;

  bool load(const std::string& path) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
    const auto find = [this](auto& function, const char* name) {
      return find_symbol(handle, function, name);
    };
    find(by_uuid, "nvmlDeviceGetHandleByUUID");
    find(get_name, "nvmlDeviceGetName");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(clock, "nvmlDeviceGetClockInfo");
    find(temperature, "nvmlDeviceGetTemperature");
    find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    if (!find(init, "nvmlInit_v2") || !find(shutdown, "nvmlShutdown") ||
        !find(by_index, "nvmlDeviceGetHandleByIndex_v2"))
      return false;
    return is_initialised = init() == kSuccess;
  }

  bool choose(int gpu, const std::string& visible) {
    const std::string entry = visible.empty() ? std::to_string(gpu) : entry_of(visible, gpu);
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
      return ask(by_uuid, entry.c_str(), &device);
    char* end = nullptr;
    const unsigned long index = std::strtoul(entry.c_str(), &end, 10);
    return !entry.empty() && *end == '\0' && by_index(unsigned(index), &device) == kSuccess;
  }

  ~Library() {
    activity.reset();
    if (is_initialised) shutdown();
    if (handle) dlclose(handle);
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open(int gpu, const std::string& visible, const std::string& library) {
  auto loaded = std::make_unique<Library>();
  if (!loaded->load(library) || !loaded->choose(gpu, visible)) return nullptr;
  loaded->activity.emplace(loaded->handle, loaded->device);
  return std::unique_ptr<Nvml>(new Nvml(std::move(loaded)));
}

std::string Nvml::name() const {
  std::array<char, 96> text{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE
  const Library& nvml = *library_;
  return ask(nvml.get_name, nvml.device, text.data(), unsigned(text.size())) ? text.data() : "";
}

void Nvml::read(Telemetry& reading) {
  Library& nvml = *library_;
  reading.gpu_sm_active = nvml.activity->read();
  Utilization busy{};
  if (ask(nvml.utilization, nvml.device, &busy)) {
    reading.gpu_busy = busy.gpu / 100.0;
    reading.gpu_memory_busy = busy.memory / 100.0;
  }
  MemoryInfo memory{};
  if (ask(nvml.memory, nvml.device, &memory)) reading.gpu_memory_bytes = double(memory.used);
  unsigned value = 0;
  if (ask(nvml.power, nvml.device, &value)) reading.gpu_power_w = value / 1e3;
  if (ask(nvml.clock, nvml.device, kClockSm, &value)) reading.gpu_clock_mhz = value;
  if (ask(nvml.temperature, nvml.device, kTemperatureGpu, &value)) reading.gpu_celsius = value;
  unsigned long long bits = 0;
  if (ask(nvml.reasons, nvml.device, &bits)) {
    for (const Reason& reason : kReasons)
      if (bits & reason.bit)
        reading.throttle_reasons +=
            (reading.throttle_reasons.empty() ? "" : ", ") + std::string(reason.text);
    reading.gpu_throttled = reading.throttle_reasons.empty() ? 0 : 1;
  }
}

std::optional<double> peak_flop_per_s(const std::string& name, PrecisionMode mode) {
  for (const Peak& peak : kPeaks) {
    if (!has_word(name, peak.part)) continue;
    if (mode == PrecisionMode::kFp32) return peak.fp32 * 1e12;
    return (mode == PrecisionMode::kTf32 ? peak.tf32 : peak.half) * 1e12;
  }
  return std::nullopt;
}

}  // namespace saturate
