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
#include <string>

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

// Is told what the fake is asked to do, on the thread that asks. A stream goes by its handle, a
// device's default stream by an address of its own.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void records(const void* event, const void* stream) = 0;
  virtual void waits(const void* stream, const void* event) = 0;
  // The host waited for it, or was told that it is done.
  virtual void host_reaches(const void* event) = 0;
  virtual void host_drains(const void* stream) = 0;  // null: all streams
  // Copies, fills and our own kernel: reads or writes a device's memory from `begin` on.
  virtual void touches(const void* stream, const void* begin, bool writes) = 0;
  // A copy reads pinned memory of the host.
  virtual void reads_pinned(const void* stream, const void* begin, size_t bytes) = 0;
  // Copies from pageable memory, which no one waits for yet.
  virtual void copies_pageable(const void* stream) = 0;
};

// Functions of the fake runtime that tests call.
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
  // The functions of the program that led here, up to `most`, innermost first.
  std::string (*callers)(size_t most);
  // Null: nobody. Waits for the calls under way, so that the last observer may go.
  void (*observe)(Observer* observer);
  const void* (*default_stream)(int device);
  // From now on the host is told so many times that an event is not done yet, after each record.
  void (*delay)(int queries);
  // From now on waits of a stream for an event do nothing where a function of a name with `caller`
  // led to them, and whoever asks there whether an event is done is told so too early: a mistake to
  // be found. Null: nowhere.
  void (*leave_out_waits)(const char* caller);
  void (*begin_peak)();  // kPeakBytes is kLiveBytes
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
