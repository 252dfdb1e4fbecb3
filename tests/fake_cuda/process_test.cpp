// The command on the fake CUDA runtime, in separate processes: the first use of CUDA, several
// processes on one GPU, resuming.

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "reduce/backends.h"
#include "run/checkpoint.h"
#include "saturate/train_step.h"
#include "tests/app_testing.h"
#include "tests/fake_cuda/host_testing.h"
#include "tests/reduce_testing.h"

namespace saturate::testing {
namespace {

class GpuProcess : public OnFakeCuda {
 protected:
  GpuProcess() {
    write_file(recipe,
               "[data]\nsource = \"synth:size=16,count=80\"\nthreads = 1\n[model]\nname = \"mlp\"\n"
               "[augment]\nsize = 16\n[train]\nbatch = 10\nepochs = 1\nthreads = 1\n"
               "device = \"cuda\"\n[watch]\nprogress = false\ntelemetry_hz = 0\n");
  }
  std::string train(const std::string& name, const std::string& more = "") {
    return "train " + recipe + " --out " + (dir / name) + " " + more;
  }
  void expect_good(const CommandResult& result) { EXPECT_EQ(result.exit_code, 0) << result.err; }
  Checkpoint checkpoint_of(const std::string& name) {
    return find_checkpoint(Env::posix(), dir / name,
                           [](const std::string& text) { ADD_FAILURE() << text; });
  }
  const std::string recipe = dir / "recipe.toml";
};

TEST_F(GpuProcess, ARunMakesTheFirstCudaCall) {
  expect_good(run_saturate(train("run")));
}

TEST_F(GpuProcess, AMemoryLimitMakesTheFirstCudaCall) {
  expect_good(run_saturate(train("run", "--set train.memory_gb=1")));
}

// Compute capability 7.0; Turing's is 7.5.
TEST_F(GpuProcess, DefaultPrecisionIsFp32OnAGpuWithoutBf16) {
  EXPECT_EQ(resolve_precision(PrecisionMode::kDefault, at::kCUDA), PrecisionMode::kBf16);
  setenv("SATURATE_FAKE_CUDA_MAJOR", "7", 1);
  EXPECT_EQ(resolve_precision(PrecisionMode::kDefault, at::kCUDA), PrecisionMode::kFp32);
  EXPECT_EQ(resolve_precision(PrecisionMode::kAuto, at::kCUDA), PrecisionMode::kFp32);
  unsetenv("SATURATE_FAKE_CUDA_MAJOR");
}

TEST_F(GpuProcess, TwoProcessesShareAGpuWithGloo) {
  const std::string launch = "launch --nproc-per-node 2 -- ", one = "CUDA_VISIBLE_DEVICES=0";
  expect_good(run_saturate(launch + train("two", "--set distributed.backend=gloo"), one));
  EXPECT_EQ(checkpoint_of("two").position.step, 8);
  const CommandResult refused = run_saturate(launch + train("nccl"), one);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("distributed.backend=gloo"), std::string::npos) << refused.err;
}

TEST_F(GpuProcess, TwoProcessesSynchroniseBatchNorm) {
  expect_good(
      run_saturate("launch --nproc-per-node 2 -- " +
                       train("two",
                             "--set distributed.backend=gloo --set distributed.sync_bn=true "
                             "--set model.name=resnet18 --set model.width=0.125"),
                   "CUDA_VISIBLE_DEVICES=0"));
  EXPECT_EQ(checkpoint_of("two").position.step, 8);
}

// "CALL:NTH:CODE,..." from the nth call on; 2 is cudaErrorMemoryAllocation.
std::string failing(const std::string& call, int64_t nth, int code = 2) {
  std::string plan = "SATURATE_FAKE_CUDA_FAIL=";
  for (int64_t i = nth; i < nth + 50; ++i)
    plan += call + ":" + std::to_string(i) + ":" + std::to_string(code) + ",";
  return plan;
}

// One of the last allocations fails, or cuBLAS in the middle of the run.
TEST_F(GpuProcess, MemoryThatRunsOutInARunIsOneLineWithWhatToDo) {
  const std::string uneven = "--set train.batch=33 --set watch.every=1";
  expect_good(run_saturate(train("good", uneven), "SATURATE_FAKE_CUDA_REPORT=" + (dir / "calls")));
  const auto calls = nlohmann::json::parse(read_text(dir / "calls"));
  const auto last = calls["calls"]["cudaMalloc"].get<int64_t>();
  ASSERT_GT(last, 4);
  for (int64_t nth = last; nth > last - 4; --nth) {
    CommandResult result =
        run_saturate(train("run" + std::to_string(nth), uneven), failing("cudaMalloc", nth));
    SCOPED_TRACE(std::to_string(nth) + " of " + std::to_string(last) + ": " + result.err);
    if (result.out.starts_with("failed at step")) result.out.clear();
    expect_error(result, 4, {"out of memory", "train.device", "Lower train.batch"});
  }
  // cuBLAS' own words: CUBLAS_STATUS_ALLOC_FAILED. torch calls it again if cublasLt fails.
  expect_failed_run(run_saturate(train("blas", uneven), failing("cublasGemm", 12, 3)), 4,
                    {"CUBLAS_STATUS_ALLOC_FAILED", "train.device", "Lower train.batch"});
}

// All but the first block, which torch needs for item().
TEST_F(GpuProcess, WithoutPinnedMemoryARunContinuesWithPlainMemory) {
  for (const std::string more : {"", "--set pipeline.copy=false", "--set data.cache=device"}) {
    SCOPED_TRACE(more);
    const CommandResult result =
        run_saturate(train("run" + std::to_string(more.size()), more), failing("cudaHostAlloc", 2));
    expect_good(result);
    EXPECT_NE(result.err.find("saturate: warning: the system has no more pinned memory"),
              std::string::npos)
        << result.err;
  }
}

TEST_F(GpuProcess, IsBuiltWithTheWheelsNccl) {
  const std::string wheel = "/site/nvidia/nccl/include", system = "/system/include";
  const auto found = [&] {
    const std::string command = "cmake -D site_packages=" + (dir / "site") +
                                " -D CMAKE_SYSTEM_PREFIX_PATH=" + (dir / "system") + " -P " +
                                source_path("cmake/Nccl.cmake") + " >" + (dir / "found");
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_text(dir / "found");
  };
  write_file(dir.path() + system + "/nccl.h", "");
  EXPECT_EQ(found(), "-- " + dir.path() + system + "\n");
  write_file(dir.path() + wheel + "/nccl.h", "");
  EXPECT_EQ(found(), "-- " + dir.path() + wheel + "\n");
}

// torch's structures contain ncclConfig_t, which has other fields in another release.
TEST_F(GpuProcess, IsNotBuiltWithAnotherReleaseOfNccl) {
  const auto found = [&](const std::string& minor) {
    write_file(dir / "system/include/nccl.h",
               "#define NCCL_MAJOR 2\n#define NCCL_MINOR " + minor + "\n#define NCCL_PATCH 9\n");
    // The fake's libraries make the dynamic loader print warnings.
    const std::string command =
        "unset LD_PRELOAD LD_LIBRARY_PATH; cmake -D site_packages=" + (dir / "site") +
        " -D CMAKE_SYSTEM_PREFIX_PATH=" + (dir / "system") + " -P " +
        source_path("cmake/Nccl.cmake") + " >" + (dir / "found") + " 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_text(dir / "found");
  };
  write_file(
      dir / "site/torch-2.15.0.dist-info/METADATA",
      "Name: torch\nRequires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == \"Linux\"\n");
  EXPECT_EQ(found("30"), "-- " + (dir / "system/include\n"));
  EXPECT_EQ(found("28"), "saturate: NCCL is left out: " + (dir / "system/include/nccl.h") +
                             " is 2.28, not LibTorch's 2.30. Run tools/setup.sh --nccl\n-- \n");
}

// setBackend() replaces a backend's device by the group's own.
TEST_F(GpuProcess, NcclHasEachRanksDevice) {
  if (!has_nccl()) GTEST_SKIP() << "this build has no NCCL";
  run_ranks(
      2,
      [](Group& group) {
        const auto backend = group.handle().getBackend(c10::kCUDA);
        EXPECT_EQ(backend->getBackendName(), "nccl");
        EXPECT_EQ(backend->getBoundDeviceId(), std::optional(group.device()));
      },
      {}, at::kCUDA);
}

// Inductor compiles for a GPU with Triton, which needs a real driver.
TEST_F(GpuProcess, ACompiledStepNeedsAPackageMadeOnAGpu) {
  const char* const package = std::getenv("SATURATE_GPU_PACKAGE");
  if (!package) GTEST_SKIP() << "SATURATE_GPU_PACKAGE names no package made on a GPU";
  expect_good(run_saturate(train("run", std::string("--set train.compiled=") + package)));
}

TEST_F(GpuProcess, AResumedRunEndsLikeAnUninterruptedOne) {
  for (const std::string more : {"", " --set train.graph=auto", " --set data.cache=device"}) {
    SCOPED_TRACE(more);
    const std::string whole = "whole" + std::to_string(more.size());
    const std::string parted = "parted" + std::to_string(more.size());
    expect_good(run_saturate(train(whole, more)));
    expect_good(run_saturate(train(parted, "--set train.epochs=0.5" + more)));
    expect_good(run_saturate(train(parted, "--resume " + (dir / parted) + more)));
    const Checkpoint one = checkpoint_of(whole), two = checkpoint_of(parted);
    EXPECT_EQ(two.position.step, one.position.step);
    EXPECT_EQ(two.position.samples, one.position.samples);
    ASSERT_EQ(two.model.size(), one.model.size());
    for (size_t i = 0; i < one.model.size(); ++i)
      EXPECT_TRUE(two.model[i].tensor.equal(one.model[i].tensor)) << one.model[i].name;
  }
}

}  // namespace
}  // namespace saturate::testing
