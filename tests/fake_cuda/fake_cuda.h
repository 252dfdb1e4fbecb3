// A CUDA runtime for tests on a machine without a GPU. Preloaded (LD_PRELOAD) before the real
// libtorch_cuda, it runs the program's CUDA build: device memory is host memory, torch's kernels do
// nothing, the kernels of src/image/ run their CPU versions, copies copy. Work on a stream is done
// immediately, so the order on a device is not tested. It checks and counts: memory within a
// budget, the rules of capture, waits of the host, kinds of copies, launches.
//
// Set by the environment: SATURATE_FAKE_CUDA_MEMORY (bytes of each device, 8 GiB),
// SATURATE_FAKE_CUDA_DEVICES (1), SATURATE_FAKE_CUDA_MAJOR (of their compute capability, 9),
// SATURATE_FAKE_CUDA_FAIL (CALL:NTH[:CODE],...: see fail below), SATURATE_FAKE_CUDA_REPORT (a file:
// all counts as JSON when the process ends).
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace saturate::fake_cuda {

enum class Count {
  kLaunches,           // of kernels, outside of a capture; of products by cuBLAS too
  kNodes,              // captured: kernels, copies, fills
  kStrays,             // enqueued by a capturing thread on a stream that is not captured
  kGraphLaunches,      //
  kWaits,              // of the host for the device
  kPinnedCopies,       // between the host and a device; asynchronous if called so
  kPageableCopies,     // the same, but never asynchronous
  kDeviceCopies,       // within a device, or between two
  kFills,              // cudaMemset
  kDeviceAllocations,  // cudaMalloc
  kPinnedAllocations,  // cudaHostAlloc, cudaHostRegister
  kLiveBytes,          // of all devices
  kPeakBytes,          //
  kHostCalls,          // cudaStreamAddCallback
  kTwins,              // launches of our own kernel
  kEvents,             // recorded, outside of a capture
  kCapturedEvents,     // recorded by captures
  kCapturedPageable,   // copies of pageable memory that captures recorded
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
                                    "twins",
                                    "events",
                                    "captured_events",
                                    "captured_pageable"};
using Counts = std::array<int64_t, kCountNames.size()>;

// Receives all calls of the fake, on the calling thread. A stream is identified by its handle, a
// device's default stream by a special address.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void records(const void* event, const void* stream) = 0;
  virtual void waits(const void* stream, const void* event) = 0;
  // The host waited for it, or a query returned that it is done.
  virtual void host_reaches(const void* event) = 0;
  virtual void host_drains(const void* stream) = 0;  // null: all streams
  // Copies, fills and our own kernel: reads or writes a device's memory from `begin` on.
  virtual void touches(const void* stream, const void* begin, bool writes) = 0;
  // A copy reads pinned memory of the host.
  virtual void reads_pinned(const void* stream, const void* begin, size_t bytes) = 0;
  // Copies from pageable memory that nobody waits for yet.
  virtual void copies_pageable(const void* stream) = 0;
};

// Functions of the fake runtime that tests call.
struct Control {
  void (*read)(Counts& counts);
  // The nth call from now (1: the next) of a CUDA or cuBLAS function returns `code` and does
  // nothing.
  void (*fail)(const char* call, int nth, int code);
  // The callers of waits and pageable copies since the last call: a line each, the call and the
  // functions that led to it, innermost first. Up to 16 lines; valid until the next call.
  const char* (*take_sites)();
  // From now on records callers of this count too, such as launches; null: no more.
  void (*watch)(std::optional<Count> count);
  // Launches a kernel that is `work` on the host: done immediately, or captured.
  void (*launch)(void* stream, std::function<void()> work);
  // The functions of the program that led here, up to `most`, innermost first.
  std::string (*callers)(size_t most);
  // Null: no observer. Waits for the calls in progress, so that the last observer can be destroyed.
  void (*observe)(Observer* observer);
  const void* (*default_stream)(int device);
  // From now on the host's first queries of an event after each record, so many, return "not done".
  void (*delay)(int queries);
  // From now on a stream's waits for events do nothing if a function whose name contains `caller`
  // led to them, and a query of an event there returns "done" too early: a planted mistake. Null:
  // none.
  void (*skip_waits)(const char* caller);
  void (*begin_peak)();  // kPeakBytes is kLiveBytes
};

// Null if the process does not run on the fake.
inline const Control* control() {
  using Get = const Control* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "saturate_fake_cuda_control"));
  return get ? get() : nullptr;
}

inline int64_t of(const Counts& counts, Count count) {
  return counts[size_t(count)];
}

}  // namespace saturate::fake_cuda
