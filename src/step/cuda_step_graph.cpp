// CUDA graphs by way of torch's, which gives what is recorded memory of its own and new random
// numbers each time: it adds to the default generator's offset as many as the recording drew.
#include "saturate/error.h"
#include "saturate/step_graph.h"

#ifdef SATURATE_HAS_CUDA_GRAPHS
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace saturate {

#ifdef SATURATE_HAS_CUDA_GRAPHS
namespace {

void wait_for(const c10::cuda::CUDAStream& waits, const c10::cuda::CUDAStream& first) {
  c10::Event done(c10::kCUDA);
  done.record(first.unwrap());
  done.block(waits.unwrap());
}

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
    beside([&] {
      // Of this thread alone: others, such as the loader's and the checkpoint's, may go on.
      graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      try {
        body();
      } catch (...) {
        end_broken_capture();
        throw;
      }
      finish_capture();
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

  void finish_capture() {
    try {
      graph_.capture_end();
    } catch (...) {
      forget_pool();
      throw;
    }
  }

  // The first error is the one to tell of.
  void end_broken_capture() {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      forget_pool();
    }
  }

  // torch leaves the allocator recording where a capture does not end well.
  void forget_pool() {
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_);
    } catch (const std::exception&) {  // it had got as far itself
    }
    static_cast<void>(cudaGetLastError());
  }

  const c10::Device device_;
  const c10::cuda::CUDAStream stream_;
  const at::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
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
