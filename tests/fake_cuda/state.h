// State shared by all parts of the fake: counts, planned and returned errors, callers.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <mutex>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"

namespace saturate::fake_cuda {

// A call's effect on the host, and so on a capturing thread.
enum class Manner {
  kEnqueues,
  kUnsafe,  // may wait for the device: not while capturing, unless the thread allows unsafe calls
  kWaits,   // the host waits for the device: never while capturing
};

// Guards all state of the fake.
std::mutex& guard();

// Begins every call: counts it by name, fails if that is planned or a capture forbids it.
cudaError_t enter(const char* call, Manner manner = Manner::kEnqueues);
#define SATURATE_ENTER(...) \
  if (const cudaError_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__)) return planned
// The same for libraries with other error codes: 0 or the planned code.
int enter_library(const char* call);

// Also the result of the next cudaGetLastError(). Success changes nothing.
cudaError_t failed(cudaError_t error);
cudaError_t last_error(bool forget);

// REQUIRES, of all below: guard() is held.
void add(Count count, int64_t by = 1);
int64_t now(Count count);
void raise_peak();
void note_site(const std::string& what);
// The same for a watched count.
void note_watched(Count count);

// The names of the functions that led here, innermost first, without the fake's own; only the
// program's if `program`.
std::string callers(size_t most, bool program);

// Calls `call` with the observer, if there is one. REQUIRES: guard() is not held.
void notify(const std::function<void(Observer&)>& call);
const void* key_of(cudaStream_t stream);

int64_t setting(const char* name, int64_t otherwise);

}  // namespace saturate::fake_cuda
