// A GPU's events as a stream clock's marks, and the streams in the records of a GPU run.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/app_testing.h"
#include "tests/gpu_testing.h"
#include "trace/device_phases.h"
#include "trace/stream_clock.h"

namespace saturate::testing {
namespace {

// The first product on a GPU takes long, since it loads cuBLAS.
at::Tensor warm_matrix() {
  const at::Tensor product = at::rand({2048, 2048}, at::kCUDA);
  product.matmul(product).sum().item<float>();
  return product;
}

TEST(GpuStreamClock, SeparatesWorkFromIdleGaps) {
  SATURATE_NEEDS_GPU();
  const auto clock = make_stream_clock(at::kCUDA);
  ASSERT_NE(clock, nullptr);
  at::Tensor product = warm_matrix();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    {
      const StreamClock::Work busy(clock.get(), kStepStream);
      for (int k = 0; k < 10; ++k) product = product.matmul(product) / 2048;
    }
    product.sum().item<float>();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto times = clock->times();
  ASSERT_EQ(times.size(), 1u);
  EXPECT_GT(times[0].busy_s, 0);
  EXPECT_GT(times[0].idle_s, 0.019) << "four gaps of at least 5 ms";
  EXPECT_LE(times[0].busy_s + times[0].idle_s, wall.count() * 1.01);
}

TEST(GpuDevicePhases, EqualTheStreamsTimes) {
  SATURATE_NEEDS_GPU();
  const auto phases = make_device_phases(at::kCUDA);
  ASSERT_NE(phases, nullptr);
  at::Tensor product = warm_matrix();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {  // more marks than the ring has
    phases->enter(Phase::kForward);
    product = product.matmul(product) / 2048;
    phases->enter(Phase::kBackward);
    for (int k = 0; k < 3; ++k) product = product.matmul(product) / 2048;
    if (i % 50 == 0) product.sum().item<float>();
  }
  phases->enter(Phase::kWait);
  product.sum().item<float>();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const PhaseTimes times = phases->times();
  EXPECT_GT(times[Phase::kForward], 0);
  EXPECT_GT(times[Phase::kBackward], times[Phase::kForward]) << "three times the work";
  EXPECT_LE(times.total(), wall.count() * 1.01);
}

class GpuStreams : public TrainingTest {};

TEST_F(GpuStreams, AreInTheRecordsAndSummaryOfARun) {
  SATURATE_NEEDS_GPU();
  for (const bool graph : {false, true}) {
    const std::string name = graph ? "graph" : "plain";
    const CommandResult result =
        train(name, {"train.device=cuda", "pipeline.copy=true",
                     std::string("train.graph=") + (graph ? "auto" : "off")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("GPU streams: copy "), std::string::npos) << result.out;
    const nlohmann::json end = read_metrics(dir / name).back();
    for (const char* stream : {"copy", "step"}) {
      const double busy_s = end["streams"][stream]["busy_s"],
                   idle_s = end["streams"][stream]["idle_s"];
      EXPECT_GT(busy_s, 0) << stream;
      EXPECT_GE(idle_s, 0) << stream;
      EXPECT_LE(busy_s + idle_s, 1.01 * end["time_s"].get<double>()) << stream;
    }
    double device_s = 0;
    for (const auto& [phase, seconds] : end["device_phases"].items()) {
      EXPECT_GE(seconds.get<double>(), 0) << phase;
      device_s += seconds.get<double>();
    }
    EXPECT_GT(end["device_phases"]["forward"].get<double>(), 0);
    EXPECT_LE(device_s, 1.01 * end["time_s"].get<double>());
    EXPECT_NE(result.out.find("GPU, s"), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace saturate::testing
