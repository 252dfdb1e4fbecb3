// CUDA graphs through torch's, which gives a captured graph its own memory and new random numbers
// for each replay: it advances the default generator's offset by the number that capture drew.
#include "saturate/data/error.h"
#include "step/step_graph.h"

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

// Cleans up what torch 2.11 does not when a capture fails: the device and host allocators keep
// allocating from its pool through a function that holds the graph's address; the generators stay
// in capture mode and refuse the next random number; the pool is never released.
class Capture : public at::cuda::CUDAGraph {
 public:
  void begin(at::cuda::MempoolId_t pool, c10::DeviceIndex device) {
    pool_ = pool;
    device_ = device;
    // For this thread only: others, such as the loader's and the checkpoint writer's, continue.
    capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }

  void abandon() {
    if (!std::exchange(ended_, true)) quietly([&] { capture_end(); });
    clean_up(*this);
    static_cast<void>(cudaGetLastError());
  }

  void end() {
    ended_ = true;
    capture_end();
  }

 private:
  // A template, so that members which only some releases of torch have can be asked for.
  template <class Graph>
  void clean_up(Graph& graph) {
    for (auto& [state, increment] : graph.captured_generator_states_)
      if constexpr (requires { state->capturing_; }) state->capturing_ = false;
    if constexpr (!requires { graph.capturing_to_pool_; }) {  // else reset() does this
      using c10::cuda::CUDACachingAllocator::endAllocateToPool;
      quietly([&] { endAllocateToPool(device_, pool_); });
      quietly([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
      graph.capture_ended_ = true;  // makes reset() release the pools
    }
  }

  // Report the first error; steps that torch has completed already throw here.
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

// Warms up on the stream used for capture: autograd's and cuDNN's per-stream state then exists, and
// no captured work depends on the default stream, which cannot be captured.
class CudaStepGraph : public StepGraph {
 public:
  explicit CudaStepGraph(const c10::Device& device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  void warm_up(const std::function<void()>& body) override { beside(body); }

  void capture(const std::function<void()>& body) override {
    const c10::cuda::CUDAGuard on_device(device_);
    c10::cuda::device_synchronize();  // pending work would be captured as a dependency
    // The graph has its own memory pool: free the warm-up's memory first.
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
  // Runs `body` on this object's stream, ordered with earlier and later work on the current one.
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
