// train.batch=auto: how many images fit in memory, found by trying.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <set>

#include "run/batch_search.h"
#include "run/checkpoint.h"
#include "saturate/memory.h"
#include "saturate/trainer.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

constexpr double kGibPerMib = 1.0 / 1024;  // of a GiB

TEST(LargestThatFits, IsFoundForEveryThresholdAndLimit) {
  for (int64_t limit = 1; limit <= 40; ++limit) {
    for (int64_t threshold = 0; threshold <= 45; ++threshold) {
      std::multiset<int64_t> tried;
      const auto found = largest_that_fits(limit, [&](int64_t count) {
        EXPECT_LE(count, limit);
        EXPECT_GE(count, 1);
        tried.insert(count);
        return count <= threshold;
      });
      const int64_t expected = std::min(limit, threshold);
      EXPECT_EQ(found.value_or(0), expected) << limit << " " << threshold;
      for (const int64_t count : tried) EXPECT_EQ(tried.count(count), 1u) << count;
      EXPECT_FALSE(threshold >= 2 && limit > 1 && tried.contains(1));
      EXPECT_LE(tried.size(), 12u);
    }
  }
}

TEST(FitsInMemory, OtherErrorsAreRethrown) {
  const MemoryBudget budget(tensor_memory(at::kCPU), tensor_memory(at::kCPU).live_bytes() + 1000);
  EXPECT_TRUE(fits_in_memory(at::kCPU, [] { at::empty({100}, at::kByte); }));
  EXPECT_FALSE(fits_in_memory(at::kCPU, [] { at::empty({100000}, at::kByte); }));
  EXPECT_THROW(fits_in_memory(at::kCPU, [] { at::empty({-1}, at::kByte); }), c10::Error);
}

// torch's errors for a lack of GPU memory differ only in their text.
TEST(FitsInMemory, RecognisesTheLibrariesErrorsForTooLarge) {
  for (const char* words :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
        "Expected canUse32BitIndexMath(input) to be true, but got false.",
        "upsample_bilinear2d_backward: only supports input tensors with less than INT_MAX elements",
        "CUDA kernel launch blocks must be positive, but got N=-2147483648",
        "OOM trying to allocate workspace for cublaslt",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasSetWorkspace(handle, 0, 0)`",
        "Padded input tensor is too large.", "Output size is too large.", "integer out of range"})
    EXPECT_FALSE(fits_in_memory(at::kCPU, [&] { TORCH_CHECK(false, words); })) << words;
  EXPECT_THROW(fits_in_memory(
                   at::kCPU, [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_INVALID_VALUE"); }),
               c10::Error);
}

// A model that cuDNN cannot compute at all is not one that needs a smaller batch.
TEST(FitsInMemory, AmbiguousWordsCountOnceASmallerAttemptHasFit) {
  for (const char* words :
       {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
        "No valid engine configs for conv", "CUDA error: invalid configuration argument",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"}) {
    const auto attempt = [&] { TORCH_CHECK(false, words); };
    EXPECT_FALSE(fits_in_memory(at::kCPU, attempt, /*smaller_fits=*/true)) << words;
    EXPECT_THROW(fits_in_memory(at::kCPU, attempt), c10::Error) << words;
  }
}

Recipe recipe_with(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"data.source=synth:size=16,count=120",
                                  "data.threads=1",
                                  "model.name=simple_cnn",
                                  "model.width=0.25",
                                  "model.classes=10",
                                  "augment.size=16",
                                  "train.epochs=1",
                                  "train.threads=1",
                                  "train.device=cpu",
                                  "watch.progress=false"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_recipe("", "test", all);
}

TrainerOptions into(const std::string& out) {
  TrainerOptions options;
  options.out = out;
  options.progress = Progress::Style::kSilent;
  return options;
}

// A budget includes memory of the process besides a run's own tensors.
std::string memory_setting(double mib) {
  const double alive = double(tensor_memory(at::kCPU).live_bytes()) / (1 << 20);
  return "train.memory_gb=" + std::to_string((mib + alive) * kGibPerMib);
}

TEST(TrainBatchAuto, FindsTheLargestBatchThatFits) {
  const TempDir dir;
  const std::string memory = memory_setting(3);
  Trainer trainer(Env::posix(), recipe_with({"train.batch=auto", memory}), into(dir / "run"));
  const TrainOptions train = trainer.recipe().train;
  EXPECT_GT(train.batch, 8);
  EXPECT_LT(train.batch, 120) << "the data set is the limit otherwise";
  EXPECT_EQ(train.accumulate, 1);
  EXPECT_EQ(train.eval_batch, train.batch);
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.samples, 120);
  EXPECT_GT(double(result.tensor_peaks.largest()), 0.75 * train.memory_gb * double(1 << 30));

  // The search leaves room for saving: a step alone fits slightly more.
  const std::string larger = "train.batch=" + std::to_string(train.batch * 5 / 4);
  Trainer too_large(Env::posix(), recipe_with({larger, memory}), into(dir / "large"));
  const Error error = error_of([&] { too_large.run(); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.where(), "train.memory_gb");
  EXPECT_NE(error.reason().find("out of memory"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find("auto"), std::string::npos);
}

std::vector<NamedTensor> last_weights(const std::string& run) {
  const auto none = [](const std::string&) { FAIL(); };
  return find_checkpoint(Env::posix(), run, none).model;
}

void expect_same(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

// The trials leave no trace: weights, statistics, momenta, dropout's random state.
TEST(TrainBatchAuto, KeepsTheEffectiveBatchAndLeavesNoTrace) {
  const TempDir dir;
  const std::string memory = memory_setting(2.5);
  Trainer found(Env::posix(), recipe_with({"train.batch=auto:60", memory}), into(dir / "auto"));
  const TrainOptions train = found.recipe().train;
  EXPECT_EQ(train.batch, 60);
  EXPECT_GT(train.accumulate, 1) << "this shows nothing otherwise";
  EXPECT_EQ(train.effective_batch, 0);
  found.run();

  Trainer given(Env::posix(),
                recipe_with({"train.batch=60", "train.eval_batch=60",
                             "train.accumulate=" + std::to_string(train.accumulate)}),
                into(dir / "given"));
  given.run();
  expect_same(last_weights(dir / "auto"), last_weights(dir / "given"));
  // The saved recipe has the found batch, and can be read.
  const Recipe saved = load_recipe(Env::posix(), dir / "auto/recipe.toml");
  EXPECT_EQ(saved.train.batch, 60);
  EXPECT_EQ(saved.train.accumulate, train.accumulate);
}

TEST(TrainBatchAuto, AResumedRunKeepsItsBatch) {
  const TempDir dir;
  Recipe recipe = recipe_with({"train.batch=auto", memory_setting(2.5)});
  int batch = 0;
  {
    Trainer first(Env::posix(), recipe, into(dir / "run"));
    batch = first.recipe().train.batch;
    first.run();
  }
  recipe.train.epochs = 2;
  recipe.train.memory_gb *= 2;
  TrainerOptions options = into(dir / "run");
  options.resume = dir / "run";
  Trainer second(Env::posix(), recipe, options);
  EXPECT_EQ(second.recipe().train.batch, batch);
}

TEST(FindMicroBatch, RestoresTheRandomStateAndFreesItsTensors) {
  const Recipe recipe = recipe_with({"train.batch=auto"});
  const auto state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state(); };
  const at::Tensor before = state();
  const int64_t alive = tensor_memory(at::kCPU).live_bytes();
  EXPECT_EQ(find_micro_batch(Env::posix(), recipe, at::kCPU, 7), 7);
  EXPECT_TRUE(at::equal(state(), before));
  EXPECT_NEAR(double(tensor_memory(at::kCPU).live_bytes()), double(alive), 1e5);
}

// A second micro-batch needs memory for the first one's gradients.
TEST(FindMicroBatch, SeveralMicroBatchesLeaveRoomForGradients) {
  const std::string memory = memory_setting(7);
  const auto fit = [&](const std::string& effective) {
    const Recipe recipe =
        recipe_with({"train.batch=auto" + effective, "model.name=mlp", "model.width=2", memory});
    const MemoryBudget budget(tensor_memory(at::kCPU),
                              int64_t(recipe.train.memory_gb * double(1 << 30)));
    return find_micro_batch(Env::posix(), recipe, at::kCPU, 1 << 20);
  };
  EXPECT_LT(fit(":1000000"), fit(""));
}

// The loader's batches are not in torch's memory, and exceed a small model's.
TEST(FindMicroBatch, TheLoadersBatchesTakeAtMostHalfOfTheHostsMemory) {
  TensorMemory& memory = tensor_memory(at::kCPU);
  const MemoryBudget budget(memory, memory.live_bytes() + memory.capacity() / 128);
  const auto fit = [](const std::string& prefetch) {
    const Recipe recipe = recipe_with(
        {"train.batch=auto", "model.name=mlp", "model.width=0.01", "data.prefetch=" + prefetch});
    return find_micro_batch(Env::posix(), recipe, at::kCPU, int64_t{1} << 30);
  };
  constexpr int64_t kImage = 16 * 16 * 3 * sizeof(float);
  const int64_t most = fit("1024");
  EXPECT_LE(most * 1025 * kImage, memory.capacity());
  EXPECT_GT((most + 1) * 1025 * kImage, memory.capacity()) << "nothing else is the limit";
  EXPECT_GT(fit("4"), most);
}

// A smaller micro-batch does not make the loader's batches smaller.
TEST(FindMicroBatch, AnEffectiveBatchIsAsLargeAsTheRecipeSays) {
  TensorMemory& memory = tensor_memory(at::kCPU);
  const MemoryBudget budget(memory, memory.live_bytes() + memory.capacity() / 128);
  // Batches of 3 GB.
  const Recipe recipe = recipe_with(
      {"train.batch=auto:1048576", "model.name=mlp", "model.width=0.01", "data.prefetch=1024"});
  EXPECT_GT(find_micro_batch(Env::posix(), recipe, at::kCPU, 1048576), 100);
}

TEST(FindMicroBatch, GradientCheckpointingFitsMore) {
  const std::string memory = memory_setting(40);
  const auto fit = [&](const std::string& segments) {
    Recipe recipe = recipe_with({"train.batch=auto", "model.name=resnet9", memory,
                                 "augment.size=32", "train.checkpoint_segments=" + segments});
    const MemoryBudget budget(tensor_memory(at::kCPU),
                              int64_t(recipe.train.memory_gb * double(1 << 30)));
    return find_micro_batch(Env::posix(), recipe, at::kCPU, 1000);
  };
  EXPECT_GT(fit("auto"), fit("0"));
}

TEST(TrainBatchAuto, IfNotEvenOneImageFitsItIsAnErrorBeforeTraining) {
  const TempDir dir;
  const Error error = error_of([&] {
    Trainer(Env::posix(), recipe_with({"train.batch=auto", memory_setting(0.2)}),
            into(dir / "run"));
  });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.where(), "train.memory_gb");
  EXPECT_NE(error.reason().find("even with a single image"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find("Raise it"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir / "run/metrics.jsonl"));
}

}  // namespace
}  // namespace saturate
