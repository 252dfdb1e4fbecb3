// CUDA graphs by way of torch's, which gives what is recorded memory of its own and new random
// numbers each time: it adds to the default generator's offset as many as the recording drew.
#include "saturate/error.h"
#include "saturate/step_graph.h"

#ifdef SATURATE_HAS_CUDA_GRAPHS
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>
#endif

namespace saturate {

#ifdef SATURATE_HAS_CUDA_GRAPHS
namespace {

void wait_for(const c10::cuda::CUDAStream& waits, const c10::cuda::CUDAStream& first) {
  c10::Event done(c10::kCUDA);
  done.record(first.unwrap());
  done.block(waits.unwrap());
}

// torch leaves undone where a capture fails: the device's and the host's allocators go on recording
// into its pool, by a function that holds the graph's address; the generators count as recorded,
// and refuse the next ordinary random number; the pool is never let go.
class Capture : public at::cuda::CUDAGraph {
 public:
  void begin(at::cuda::MempoolId_t pool, c10::DeviceIndex device) {
    pool_ = pool;
    device_ = device;
    // Of this thread alone: others, such as the loader's and the checkpoint's, may go on.
    capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }

  void abandon() {
    if (!std::exchange(ended_, true)) quietly([&] { capture_end(); });
    using c10::cuda::CUDACachingAllocator::endAllocateToPool;
    quietly([&] { endAllocateToPool(device_, pool_); });
    quietly([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
    for (auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
    capture_ended_ = true;  // reset() lets go of the pools then
    static_cast<void>(cudaGetLastError());
  }

  void end() {
    ended_ = true;
    capture_end();
  }

 private:
  // The first error is the one to tell of; what torch got done itself, it refuses to do again.
  template <class Action>
  static void quietly(const Action& action) {
    try {
      action();
    } catch (const std::exception&) {
    }
  }

  at::cuda::MempoolId_t pool_;
  c10::DeviceIndex device_ = 0;
  bool ended_ = false;
};

// Warms up on the stream that it records on: what autograd and cuDNN keep for each stream is then
// there, and no work of the recording is bound to the default stream, which cannot be recorded.
class CudaStepGraph : public StepGraph {
 public:
  explicit CudaStepGraph(const c10::Device& device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  void warm_up(const std::function<void()>& body) override { beside(body); }

  void capture(const std::function<void()>& body) override {
    c10::cuda::device_synchronize();  // work under way would be recorded as something to wait for
    // The recording has memory of its own: what the warm-up left would be held beside it.
    c10::cuda::CUDACachingAllocator::emptyCache();
    beside([&] {
      try {
        graph_.begin(pool_, device_.index());
        body();
        graph_.end();
      } catch (...) {
        graph_.abandon();
        throw;
      }
    });
  }

  void replay() override { graph_.replay(); }

 private:
  // Does `body` on the own stream, in order with what comes before and after it on the current one.
  template <class Body>
  void beside(const Body& body) {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(device_.index());
    wait_for(stream_, current);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      body();
    }
    wait_for(current, stream_);
  }

  const c10::Device device_;
  const c10::cuda::CUDAStream stream_;
  const at::cuda::MempoolId_t pool_;
  Capture graph_;
};

}  // namespace

bool has_cuda_graphs() {
  return true;
}

std::unique_ptr<StepGraph> make_cuda_graph(const c10::Device& device) {
  return std::make_unique<CudaStepGraph>(device);
}

#else

bool has_cuda_graphs() {
  return false;
}

std::unique_ptr<StepGraph> make_cuda_graph(const c10::Device&) {
  fail(ErrorKind::kUsage, "this build has no CUDA graphs", "train.graph",
       "Set train.graph=off, or build with CUDA (SATURATE_CUDA=ON) and a full LibTorch");
}

#endif

}  // namespace saturate
