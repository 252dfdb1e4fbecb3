// A CUDA runtime for tests, on a machine without a GPU. Preloaded (LD_PRELOAD) before the real
// libtorch_cuda, it has the program's own CUDA build run: device memory is the host's, kernels of
// torch do nothing, the kernel of src/image/ runs its CPU twin, copies copy. What is done in a
// stream is done at once, so nothing is shown of the order on a device. What is checked and
// counted: memory within a budget, the rules of capture, waits of the host, kinds of copies,
// launches.
//
// Set by the environment: SATURATE_FAKE_CUDA_MEMORY (bytes of each device, 8 GiB),
// SATURATE_FAKE_CUDA_DEVICES (1), SATURATE_FAKE_CUDA_FAIL (CALL:NTH[:CODE],...: see fail below),
// SATURATE_FAKE_CUDA_REPORT (a file: all counts as JSON when the process ends).
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

namespace saturate::fake_cuda {

enum class Count {
  kLaunches,           // of kernels, outside of a capture; of products by cuBLAS too
  kNodes,              // what captures recorded: kernels, copies, fills
  kStrays,             // what a capturing thread enqueued on a stream that is not captured
  kGraphLaunches,      //
  kWaits,              // of the host for the device
  kPinnedCopies,       // between the host and a device; asynchronous where called so
  kPageableCopies,     // so, but never asynchronous
  kDeviceCopies,       // within a device, or between two
  kFills,              // cudaMemset
  kDeviceAllocations,  // cudaMalloc
  kPinnedAllocations,  // cudaHostAlloc, cudaHostRegister
  kLiveBytes,          // of all devices
  kPeakBytes,          //
  kHostCalls,          // cudaStreamAddCallback
  kTwins,              // launches of our own kernel
};
constexpr std::array kCountNames = {"launches",
                                    "nodes",
                                    "strays",
                                    "graph_launches",
                                    "waits",
                                    "pinned_copies",
                                    "pageable_copies",
                                    "device_copies",
                                    "fills",
                                    "device_allocations",
                                    "pinned_allocations",
                                    "live_bytes",
                                    "peak_bytes",
                                    "host_calls",
                                    "twins"};
using Counts = std::array<int64_t, kCountNames.size()>;

// What a test calls of the runtime that it was started on.
struct Control {
  void (*read)(Counts& counts);
  // The nth call from now (1: the next) of a function of CUDA or cuBLAS gives `code`, and does
  // nothing.
  void (*fail)(const char* call, int nth, int code);
  // Where the waits and the pageable copies since the last time came from: a line each, the call
  // and the functions that led to it, innermost first. Up to 16 lines; valid until the next call.
  const char* (*take_sites)();
  // From now on so of what is counted there too, such as launches; null: no more.
  void (*watch)(std::optional<Count> count);
  // Launches a kernel that is `work` on the host: done at once, or recorded.
  void (*launch)(void* stream, std::function<void()> work);
};

// Null where the process does not run on the fake.
inline const Control* control() {
  using Get = const Control* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "saturate_fake_cuda_control"));
  return get ? get() : nullptr;
}

inline int64_t of(const Counts& counts, Count count) {
  return counts[size_t(count)];
}

}  // namespace saturate::fake_cuda
