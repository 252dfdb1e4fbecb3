// Streams and the work enqueued on them: done immediately, or captured if the stream is captured.
#pragma once

#include <functional>

#include "tests/fake_cuda/state.h"

namespace saturate::fake_cuda {

using Work = std::function<void()>;

// Does or captures `work`, or returns the reason why the stream can do neither.
cudaError_t enqueue(
    cudaStream_t stream, Count counted, Work work = [] {});

// The effect of a call that is forbidden during capture: a capture of this thread becomes invalid.
// REQUIRES: guard() is held.
cudaError_t invalidate_capture(Manner manner);

// See Control.
void delay_events(int queries);
void skip_waits(const char* caller);

}  // namespace saturate::fake_cuda
