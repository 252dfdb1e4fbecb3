#include "record/nvml.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"

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
  const std::vector<std::string> entries = split_text(list, ',');
  return size_t(index) < entries.size() ? entries[size_t(index)] : "";
}

// Calls a function of the library, whose parameters have the arguments' types. False too if it has
// no such function.
template <class... Arguments>
bool ask(void* library, const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
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
  SmActivity(void* library, Device device) : library_(library), device_(device) {
    GpmSupport support{kVersion, 0};
    if (!ask(library, "nvmlGpmQueryDeviceSupport", device, &support) || support.is_supported == 0)
      return;
    for (GpmSample* sample : {&before_, &now_})
      if (!ask(library, "nvmlGpmSampleAlloc", sample)) *sample = nullptr;
  }
  ~SmActivity() {
    for (const GpmSample sample : {before_, now_})
      if (sample) ask(library_, "nvmlGpmSampleFree", sample);
  }
  SmActivity(const SmActivity&) = delete;
  SmActivity& operator=(const SmActivity&) = delete;

  // Mean share of the SMs that had work since the last call; empty at the first.
  std::optional<double> read() {
    if (!before_ || !now_ || !ask(library_, "nvmlGpmSampleGet", device_, now_)) return std::nullopt;
    GpmMetricsGet asked;
    asked.before = before_;
    asked.now = now_;
    asked.metrics[0].id = kSmUtil;
    const bool can_compare = std::exchange(has_before_, true);
    const bool known = can_compare && ask(library_, "nvmlGpmMetricsGet", &asked) &&
                       asked.metrics[0].result == kSuccess;
    std::swap(before_, now_);
    return known ? std::optional(asked.metrics[0].value / 100) : std::nullopt;
  }

 private:
  void* const library_;
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
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_letter_or_digit(text[at - 1])) &&
        (end == text.size() || !is_letter_or_digit(text[end])))
      return true;
  }
  return false;
}

}  // namespace

struct Nvml::Library {
  explicit Library(const std::string& path)
      : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)),
        is_initialised(handle && ask(handle, "nvmlInit_v2")) {}

  void* const handle;
  const bool is_initialised;
  Device device = nullptr;
  std::optional<SmActivity> activity;

  bool choose(int gpu, const std::string& visible) {
    const std::string entry = visible.empty() ? std::to_string(gpu) : entry_of(visible, gpu);
    if (!entry.starts_with("MIG-") && choose_by_address(gpu)) return true;
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
      return ask(handle, "nvmlDeviceGetHandleByUUID", entry.c_str(), &device);
    char* end = nullptr;
    const unsigned long index = std::strtoul(entry.c_str(), &end, 10);
    return !entry.empty() && *end == '\0' &&
           ask(handle, "nvmlDeviceGetHandleByIndex_v2", unsigned(index), &device);
  }

  // Whether the device is a whole GPU in MIG mode, whose values include those of all its instances.
  bool has_instances() const {
    unsigned now = 0, pending = 0, is_instance = 0;
    if (ask(handle, "nvmlDeviceIsMigDeviceHandle", device, &is_instance) && is_instance != 0)
      return false;
    return ask(handle, "nvmlDeviceGetMigMode", device, &now, &pending) && now != 0;
  }

  // CUDA's order may be another than NVML's, and it takes abbreviated UUIDs.
  bool choose_by_address(int gpu) {
    using GetAddress = int (*)(char* address, int length, int device);
    const auto get = reinterpret_cast<GetAddress>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
    std::array<char, 32> address{};
    return get && get(address.data(), int(address.size()), gpu) == 0 &&
           ask(handle, "nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(address.data()),
               &device);
  }

  ~Library() {
    activity.reset();
    if (is_initialised) ask(handle, "nvmlShutdown");
    if (handle) dlclose(handle);
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open(int gpu, const std::string& visible, const std::string& library) {
  auto loaded = std::make_unique<Library>(library);
  if (!loaded->is_initialised || !loaded->choose(gpu, visible) || loaded->has_instances())
    return nullptr;
  loaded->activity.emplace(loaded->handle, loaded->device);
  return std::unique_ptr<Nvml>(new Nvml(std::move(loaded)));
}

std::string Nvml::name() const {
  std::array<char, 96> text{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE
  const bool known = ask(library_->handle, "nvmlDeviceGetName", library_->device, text.data(),
                         unsigned(text.size()));
  return known ? text.data() : "";
}

void Nvml::read(Telemetry& reading) {
  const auto [handle, device] = std::pair(library_->handle, library_->device);
  reading.gpu_sm_active = library_->activity->read();
  Utilization busy{};
  if (ask(handle, "nvmlDeviceGetUtilizationRates", device, &busy)) {
    reading.gpu_busy = busy.gpu / 100.0;
    reading.gpu_memory_busy = busy.memory / 100.0;
  }
  MemoryInfo memory{};
  if (ask(handle, "nvmlDeviceGetMemoryInfo", device, &memory))
    reading.gpu_memory_bytes = double(memory.used);
  unsigned value = 0;
  if (ask(handle, "nvmlDeviceGetPowerUsage", device, &value))  // milliwatts
    reading.gpu_power_w = value / 1e3;
  if (ask(handle, "nvmlDeviceGetClockInfo", device, kClockSm, &value))
    reading.gpu_clock_mhz = value;
  if (ask(handle, "nvmlDeviceGetTemperature", device, kTemperatureGpu, &value))
    reading.gpu_celsius = value;
  unsigned long long bits = 0;
  if (ask(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", device, &bits)) {
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
