// How a run adapts to the machine.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>

#include "run/setup.h"
#include "tests/data_testing.h"
#include "tests/gpu_testing.h"

namespace saturate {
namespace {

class IdleGpu : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  void TearDown() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  void put_driver() {
    testing::write_file(root / "proc/driver/nvidia/gpus/0000:1b:00.0/information",
                        "GPU UUID: \t GPU-a\n");
  }
  void put_gpu() { testing::write_file(root / "dev/nvidiactl", ""); }

  testing::TempDir root;
};

TEST_F(IdleGpu, CausesAWarningWithARemedy) {
  put_driver();
  put_gpu();
  EXPECT_NE(idle_gpu_warning(false, root / ".").find("tools/setup.sh --full"), std::string::npos);
  EXPECT_NE(idle_gpu_warning(true, root / ".").find("nvidia-smi"), std::string::npos);
}

TEST_F(IdleGpu, HiddenOrUnwantedOnesCauseNone) {
  EXPECT_EQ(idle_gpu_warning(false, root / "."), "");
  put_driver();
  EXPECT_EQ(idle_gpu_warning(false, root / "."), "") << "a container without a GPU";
  put_gpu();
  for (const char* hides : {"", "-1"}) {
    setenv("CUDA_VISIBLE_DEVICES", hides, 1);
    EXPECT_EQ(idle_gpu_warning(false, root / "."), "") << hides;
  }
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_NE(idle_gpu_warning(false, root / "."), "");
}

TEST_F(IdleGpu, IsWarnedOfOnceInAProcessWhereTheRunIsOnTheCpu) {
  if (testing::has_gpu()) GTEST_SKIP() << "this build can use the machine's GPU";
  const auto said = [&](const char* device) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(resolve_device(device, root / ".").is_cpu());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said("auto"), "");
  put_driver();
  put_gpu();
  EXPECT_EQ(said("cpu"), "") << "it was asked for";
  EXPECT_NE(said("auto").find("saturate: warning: this machine has a GPU"), std::string::npos);
  EXPECT_EQ(said("auto"), "") << "once";
}

TEST(GroupOptions, ARankThatWaitsForDataFailsBeforeTheOthers) {
  Recipe recipe;
  const auto longer_than_a_loader = [&] {
    const std::chrono::duration<double> loader = train_loader_options(recipe).wait_limit;
    return group_options(recipe).timeout_s > loader.count();
  };
  EXPECT_TRUE(longer_than_a_loader());
  recipe.data.store.timeout_s = 3'600;
  EXPECT_TRUE(longer_than_a_loader());
  recipe.distributed.timeout_s = 30;
  EXPECT_EQ(group_options(recipe).timeout_s, 30) << "it was chosen";
}

}  // namespace
}  // namespace saturate
