// Streams and what is enqueued on them: done at once, or recorded where the stream is captured.
#pragma once

#include <functional>

#include "tests/fake_cuda/state.h"

namespace saturate::fake_cuda {

using Work = std::function<void()>;

// Does `work`, or records it, or says why the stream can do neither.
cudaError_t enqueue(
    cudaStream_t stream, Count counted, Work work = [] {});

// The effect of a call that is forbidden during capture on a capture of this thread, which is
// then invalid. REQUIRES: guard() is held.
cudaError_t spoil_capture(Manner manner);

// See Control.
void delay_events(int queries);
void leave_out_waits(const char* caller);

}  // namespace saturate::fake_cuda
