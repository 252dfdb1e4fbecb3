// Helpers of the tests on the fake CUDA runtime. They run in one process with one fake runtime, so
// counts are differences.
#pragma once

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "saturate/trainer.h"
#include "tests/data_testing.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace saturate::testing {

using fake_cuda::Count;
using fake_cuda::Counts;

inline Counts counts_now() {
  Counts counts{};
  fake_cuda::control()->read(counts);
  return counts;
}

inline Counts operator-(Counts after, const Counts& before) {
  for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
  return after;
}

inline std::string to_text(const Counts& counts) {
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] != 0)
      text += std::string(fake_cuda::kCountNames[i]) + "=" + std::to_string(counts[i]) + " ";
  return text;
}

// Returns unused memory to the driver: cuBLAS keeps memory for each stream that it has seen.
inline void release_memory() {
  at::cuda::clearCublasWorkspaces();
  c10::cuda::CUDACachingAllocator::emptyCache();
}

// Sums over all devices, after that.
inline int64_t live_bytes() {
  release_memory();
  return of(counts_now(), Count::kLiveBytes);
}

class OnFakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fake_cuda::control())
      GTEST_SKIP() << "not on the fake CUDA runtime: tests/fake_cuda/run.sh starts it";
    at::globalContext().lazyInitDevice(c10::kCUDA);
    release_memory();
  }
  void TearDown() override {
    if (fake_cuda::control()) fake_cuda::control()->watch(std::nullopt);
  }
  TempDir dir;
};

constexpr int kHostSteps = 20;
constexpr size_t kSettled = 8;  // steps that fill caches and capture graphs
constexpr size_t kSteadyEnd =
    kHostSteps - 3;  // the last step's record is not part of the steady state

// A run of 20 steps of an MLP on the GPU that writes no record except the last.
inline Recipe host_recipe(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"data.source=synth:size=16,count=200",
                                  "data.threads=1",
                                  "model.name=mlp",
                                  "augment.size=16",
                                  "train.batch=10",
                                  "train.epochs=1",
                                  "train.threads=1",
                                  "train.device=cuda",
                                  "watch.every=1000",
                                  "watch.samples=0",
                                  "watch.telemetry_hz=0",
                                  "watch.progress=false"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_recipe("", "test", all);
}

struct HostRun {
  TrainResult result;
  std::vector<Counts> steps;  // the fake's counts of each step
  std::string sites;          // of the waits and pageable copies in the steady state
};

inline HostRun run_on_host(const Recipe& recipe, const std::string& out,
                           TrainerOptions options = {}) {
  HostRun run;
  options.out = out;
  options.save = false;
  options.progress = Progress::Style::kSilent;
  Trainer trainer(Env::posix(), recipe, options);
  for (Counts before = counts_now(); trainer.step(); before = counts_now()) {
    run.steps.push_back(counts_now() - before);
    const std::string sites = fake_cuda::control()->take_sites();
    if (run.steps.size() > kSettled && run.steps.size() <= kSteadyEnd) run.sites += sites;
  }
  run.result = trainer.so_far();
  return run;
}

}  // namespace saturate::testing
