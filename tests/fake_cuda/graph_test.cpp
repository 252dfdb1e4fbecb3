// CUDA graphs of the step, especially failing captures.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include "step/step_graph.h"
#include "tests/fake_cuda/host_testing.h"

namespace saturate::testing {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

class CudaGraph : public OnFakeCuda {
 protected:
  void SetUp() override {
    OnFakeCuda::SetUp();
    if (!IsSkipped()) input_ = at::ones({1 << 20}, at::kFloat).to(kGpu);
  }
  at::Tensor drawn() { return at::dropout(input_, 0.5, /*train=*/true); }
  // A graph whose capture fails, in its body or as planned, leaves no trace.
  void expect_undone(const std::function<void()>& body) {
    drawn();
    const int64_t live = live_bytes();
    auto graph = make_cuda_graph(kGpu);
    graph->warm_up([&] { drawn(); });
    EXPECT_THROW(graph->capture(body), c10::Error);
    EXPECT_NO_THROW(drawn()) << "the generator still assumes a capture";
    graph.reset();
    // If the allocator still assumed a capture, this memory could never be freed.
    at::empty({1 << 20}, at::device(kGpu)).record_stream(c10::cuda::getStreamFromPool());
    EXPECT_EQ(live_bytes(), live) << "the graph's pool is still allocated";
    EXPECT_NO_THROW(at::empty({1 << 20}, at::TensorOptions(at::kByte).pinned_memory(true)));
    auto next = make_cuda_graph(kGpu);
    at::Tensor kept;
    EXPECT_NO_THROW(next->capture([&] { kept = drawn(); }));
    EXPECT_NO_THROW(next->replay());
    EXPECT_NO_THROW(drawn());
  }

  at::Tensor input_;
};

TEST_F(CudaGraph, IsUndoneIfItsBodyWaits) {
  expect_undone([this] { drawn().sum().item<float>(); });
}

TEST_F(CudaGraph, IsUndoneIfItsBodyThrows) {
  expect_undone([this] {
    const at::Tensor lost = drawn();
    TORCH_CHECK(false, "no more");
  });
}

TEST_F(CudaGraph, IsUndoneWhicheverCudaCallFails) {
  for (const char* call :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiateWithFlags"}) {
    SCOPED_TRACE(call);
    fake_cuda::control()->fail(call, 1, 901);
    expect_undone([this] { drawn(); });
  }
}

// torch refuses such copies; code that calls CUDA itself may make them.
TEST_F(CudaGraph, ACopyOfPageableMemoryInACaptureIsCounted) {
  const at::Tensor pageable = at::ones({100}), pinned = pageable.pin_memory();
  const at::Tensor device = at::empty({100}, kGpu);
  for (const at::Tensor& from : {pinned, pageable}) {
    auto graph = make_cuda_graph(kGpu);
    const Counts before = counts_now();
    graph->capture([&] {
      EXPECT_EQ(cudaMemcpyAsync(device.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(),
                                cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream()),
                cudaSuccess);
    });
    EXPECT_EQ(of(counts_now() - before, Count::kCapturedPageable), from.is_pinned() ? 0 : 1);
  }
}

// Records the device of each call by which the host waits for a whole device.
class Drained : public fake_cuda::Observer {
 public:
  Drained() { fake_cuda::control()->observe(this); }
  ~Drained() override { fake_cuda::control()->observe(nullptr); }
  void records(const void*, const void*) override {}
  void waits(const void*, const void*) override {}
  void host_reaches(const void*) override {}
  void host_drains(const void* stream) override {
    int device = -1;
    if (!stream && cudaGetDevice(&device) == cudaSuccess) devices.push_back(device);
  }
  void touches(const void*, const void*, bool) override {}
  void reads_pinned(const void*, const void*, size_t) override {}
  void copies_pageable(const void*) override {}

  std::vector<int> devices;
};

TEST_F(CudaGraph, WaitsForItsOwnDeviceBeforeItIsCaptured) {
  const c10::Device second(c10::kCUDA, 1);
  const auto graph = make_cuda_graph(second);
  Drained drained;
  graph->capture([&] { at::empty({10}, at::device(second)); });
  ASSERT_FALSE(drained.devices.empty());
  EXPECT_EQ(drained.devices[0], 1);
}

TEST_F(CudaGraph, HasOneCopyOfItsMemory) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const auto body = [] { at::empty({kBytes}, at::device(kGpu).dtype(at::kByte)); };
  const int64_t before = live_bytes();
  auto graph = make_cuda_graph(kGpu);
  graph->warm_up(body);
  graph->capture(body);
  const int64_t held = of(counts_now(), Count::kLiveBytes) - before;
  EXPECT_GE(held, kBytes);
  EXPECT_LE(double(held), 1.05 * double(kBytes));
}

}  // namespace
}  // namespace saturate::testing
