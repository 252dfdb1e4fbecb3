// Replaces NVIDIA's library on a machine without a GPU: two GPUs, the second hot and throttled. It
// follows the declarations of the NVML API Reference Guide.
#include <cstdlib>
#include <cstring>

extern "C" {

struct FakeUtilization {
  unsigned gpu, memory;
};
struct FakeMemory {
  unsigned long long total, free, used;
};
enum { kOk = 0, kInvalid = 2, kNotSupported = 3, kNotFound = 6 };

static int g_gpus[2] = {0, 1};
static bool g_ready = false;
static bool g_is_instance = false;  // the latest device was found by an instance's UUID

static bool is_second(void* device) {
  return device == &g_gpus[1];
}

int nvmlInit_v2() {
  g_ready = std::getenv("FAKE_NVML_BROKEN") == nullptr;
  return g_ready ? kOk : kNotFound;
}
int nvmlShutdown() {
  g_ready = false;
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (!g_ready || index > 1) return kInvalid;
  *device = &g_gpus[index];
  g_is_instance = false;
  return kOk;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-second") != 0 && std::strcmp(uuid, "MIG-second") != 0)
    return kNotFound;
  g_is_instance = std::strcmp(uuid, "MIG-second") == 0;
  *device = &g_gpus[1];
  return kOk;
}
int nvmlDeviceIsMigDeviceHandle(void*, unsigned* is_instance) {
  *is_instance = g_is_instance;
  return kOk;
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* pending) {
  if (!is_second(device)) return kNotSupported;
  *now = *pending = std::getenv("FAKE_NVML_MIG") ? 1u : 0u;
  return kOk;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::strncpy(name, is_second(device) ? "NVIDIA H100 80GB HBM3" : "NVIDIA Nothing 1", length);
  return kOk;
}
int nvmlDeviceGetUtilizationRates(void* device, FakeUtilization* busy) {
  *busy = is_second(device) ? FakeUtilization{87, 41} : FakeUtilization{5, 1};
  return kOk;
}
int nvmlDeviceGetMemoryInfo(void*, FakeMemory* memory) {
  *memory = {80'000'000'000ull, 50'000'000'000ull, 30'000'000'000ull};
  return kOk;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  if (!is_second(device)) return kNotSupported;
  *milliwatts = 412'500;
  return kOk;
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  if (kind != 1) return kInvalid;
  *mhz = 1755;
  return kOk;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  if (sensor != 0) return kInvalid;
  *celsius = 71;
  return kOk;
}

// The first GPU is too old for GPM. A sample is the number of readings; between two successive ones
// 62.5 % of the SMs had work.
struct FakeSupport {
  unsigned version, is_supported;
};
struct FakeMetric {
  unsigned id;
  int result;
  double value;
  const char* names[3];
};
struct FakeMetrics {
  unsigned version, count;
  int *before, *now;
  FakeMetric metrics[1];
};
static int g_readings = 0;

int nvmlGpmQueryDeviceSupport(void* device, FakeSupport* support) {
  if (support->version != 1) return kInvalid;
  support->is_supported = is_second(device);
  return kOk;
}
int nvmlGpmSampleAlloc(int** sample) {
  *sample = new int(0);
  return kOk;
}
int nvmlGpmSampleFree(int* sample) {
  delete sample;
  return kOk;
}
int nvmlGpmSampleGet(void*, int* sample) {
  *sample = ++g_readings;
  return kOk;
}
int nvmlGpmMetricsGet(FakeMetrics* asked) {
  if (asked->version != 1 || asked->count != 1 || asked->metrics[0].id != 2) return kInvalid;
  if (*asked->now != *asked->before + 1) return kInvalid;
  asked->metrics[0].value = 62.5;
  return kOk;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = is_second(device) ? 0x4 | 0x20 : 0x1;  // power cap and heat; idle
  return kOk;
}
}
