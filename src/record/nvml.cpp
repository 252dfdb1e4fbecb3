#include "record/nvml.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "record/sm_activity.h"

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

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }

  bool load(const std::string& path) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
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
      return by_uuid && by_uuid(entry.c_str(), &device) == kSuccess;
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
  const bool known =
      nvml.get_name && nvml.get_name(nvml.device, text.data(), unsigned(text.size())) == kSuccess;
  return known ? text.data() : "";
}

void Nvml::read(Telemetry& reading) {
  Library& nvml = *library_;
  reading.gpu_sm_active = nvml.activity->read();
  Utilization busy{};
  if (nvml.utilization && nvml.utilization(nvml.device, &busy) == kSuccess) {
    reading.gpu_busy = busy.gpu / 100.0;
    reading.gpu_memory_busy = busy.memory / 100.0;
  }
  MemoryInfo memory{};
  if (nvml.memory && nvml.memory(nvml.device, &memory) == kSuccess)
    reading.gpu_memory_bytes = double(memory.used);
  unsigned value = 0;
  if (nvml.power && nvml.power(nvml.device, &value) == kSuccess) reading.gpu_power_w = value / 1e3;
  if (nvml.clock && nvml.clock(nvml.device, kClockSm, &value) == kSuccess)
    reading.gpu_clock_mhz = value;
  if (nvml.temperature && nvml.temperature(nvml.device, kTemperatureGpu, &value) == kSuccess)
    reading.gpu_celsius = value;
  unsigned long long bits = 0;
  if (nvml.reasons && nvml.reasons(nvml.device, &bits) == kSuccess) {
    for (const Reason& reason : kReasons)
      if (bits & reason.bit)
        reading.throttle_reasons +=
            (reading.throttle_reasons.empty() ? "" : ", ") + std::string(reason.text);
    reading.gpu_throttled = reading.throttle_reasons.empty() ? 0 : 1;
  }
}

}  // namespace saturate
