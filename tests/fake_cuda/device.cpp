// The fake's devices: SATURATE_FAKE_CUDA_DEVICES sets their number, CUDA_VISIBLE_DEVICES selects
// among them; all are equal.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/state.h"

namespace saturate::fake_cuda {
namespace {

constexpr int kVersion = CUDART_VERSION, kMajor = 9, kMultiprocessors = 132, kWarp = 32;
constexpr int kBlockThreads = 1024, kMultiprocessorThreads = 2048, kBlocks = 32;
constexpr int kShared = 49152, kSharedOptIn = 232448, kRegisters = 65536;
constexpr int kGridX = 2147483647, kGridY = 65535;

thread_local int current = 0;

// CUDA reads the list up to the first entry that is not a device.
int visible_devices() {
  const int present = int(setting("SATURATE_FAKE_CUDA_DEVICES", 1));
  const char* const given = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!given) return present;
  int count = 0;
  std::istringstream names(given);
  for (std::string name; std::getline(names, name, ','); ++count) {
    char* end = nullptr;
    const long number = std::strtol(name.c_str(), &end, 10);
    if (name.empty() || *end != '\0' || number < 0 || number >= present) break;
  }
  return count;
}

int device_count() {
  static const int count = visible_devices();
  return count;
}

void describe(cudaDeviceProp& made) {
  made = {};
  std::strcpy(made.name, "saturate's fake GPU");
  made.totalGlobalMem = size_t(device_bytes());
  made.major = kMajor;
  made.multiProcessorCount = kMultiprocessors;
  made.warpSize = kWarp;
  made.maxThreadsPerBlock = kBlockThreads;
  made.maxThreadsPerMultiProcessor = kMultiprocessorThreads;
  made.maxBlocksPerMultiProcessor = kBlocks;
  made.sharedMemPerBlock = kShared;
  made.sharedMemPerBlockOptin = kSharedOptIn;
  made.sharedMemPerMultiprocessor = kSharedOptIn + 1024;
  made.regsPerBlock = made.regsPerMultiprocessor = kRegisters;
  made.maxGridSize[0] = kGridX;
  made.maxGridSize[1] = made.maxGridSize[2] = kGridY;
  made.maxThreadsDim[0] = made.maxThreadsDim[1] = kBlockThreads;
  made.maxThreadsDim[2] = 64;
  made.l2CacheSize = 50 << 20;
  made.textureAlignment = 512;
  made.concurrentKernels = made.unifiedAddressing = made.canMapHostMemory = 1;
}

int attribute(cudaDeviceAttr asked) {
  switch (asked) {
    case cudaDevAttrComputeCapabilityMajor:
      return int(setting("SATURATE_FAKE_CUDA_MAJOR", kMajor));
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrMultiProcessorCount:
      return kMultiprocessors;
    case cudaDevAttrWarpSize:
      return kWarp;
    case cudaDevAttrMaxThreadsPerBlock:
      return kBlockThreads;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return kMultiprocessorThreads;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return kBlocks;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kShared;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return kSharedOptIn;
    case cudaDevAttrMaxGridDimX:
      return kGridX;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return kGridY;
    case cudaDevAttrMemoryPoolsSupported:
      return 0;
    default:
      return 1;
  }
}

}  // namespace
}  // namespace saturate::fake_cuda

using namespace saturate::fake_cuda;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  SATURATE_ENTER();
  *count = device_count();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* made, int) {
  SATURATE_ENTER();
  describe(*made);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr asked, int) {
  *value = attribute(asked);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, size_t(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return failed(cudaErrorSymbolNotFound);
}

cudaError_t cudaGetLastError() {
  return last_error(/*forget=*/true);
}
cudaError_t cudaPeekAtLastError() {
  return last_error(/*forget=*/false);
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    default:
      return "an error of the fake CUDA runtime";
  }
}
}
