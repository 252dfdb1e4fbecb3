// Packed JPEGs decoded on a GPU, also on the fake CUDA runtime: the same images as the CPU's, and
// no damaged one without an error.
#include <ATen/ops/equal.h>

#include <thread>

#include "saturate/feed.h"
#include "tests/gpu_testing.h"
#include "tests/packed_testing.h"

namespace saturate::testing {
namespace {

AugmentOptions crops(const ImageSize& size) {
  AugmentOptions augment;
  augment.size = size;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

// The images of two epochs.
std::vector<at::Tensor> images_on(const at::Device& device, const Dataset& data, bool packs,
                                  const AugmentOptions& augment, Toggle copy = Toggle::kOff,
                                  bool channels_last = true) {
  Loader loader(data, packing_options(packs), augment, batch_allocator(device));
  Ledger ledger(Env::posix());
  Feeder feeder(loader, device, channels_last, ledger, augment);
  if (copy == Toggle::kOn) feeder.use_pipeline({{.copy = copy}});
  std::vector<at::Tensor> all;
  for (const uint32_t epoch : {0u, 1u}) {
    feeder.start_epoch(epoch);
    for (DeviceBatch batch; feeder.next(batch);) all.push_back(batch.images.cpu());
    feeder.stop();
  }
  return all;
}

class GpuPacked : public ::testing::Test {
 protected:
  void SetUp() override { SATURATE_NEEDS_GPU(); }
  TempDir dir;
};

// With effects the kernel writes bytes, and another one normalises them; without, it does both.
TEST_F(GpuPacked, ImagesHaveTheBitsOfTheCpus) {
  struct Case {
    ImageSize size;
    PixelType type;
    double rotate;
    bool channels_last;
  };
  const Case cases[] = {
      {96, PixelType::kFloat32, 0, true},         {{72, 112}, PixelType::kFloat32, 0, false},
      {{72, 112}, PixelType::kBfloat16, 0, true}, {96, PixelType::kBfloat16, 0, false},
      {{75, 113}, PixelType::kFloat16, 0, true},  {96, PixelType::kFloat32, 20, true},
      {{72, 112}, PixelType::kBfloat16, 20, true}};
  const auto shard = mixed_shard(dir);
  for (const Case& of : cases) {
    AugmentOptions augment = crops(of.size);
    augment.output = of.type;
    augment.rotate = of.rotate;
    EXPECT_GT(packed_samples(*shard, augment), 0u);
    const auto expected =
        images_on(at::kCPU, *shard, false, augment, Toggle::kOff, of.channels_last);
    ASSERT_EQ(expected.size(), 10u);
    for (const Toggle copy : {Toggle::kOff, Toggle::kOn}) {
      const auto found = images_on({at::kCUDA, 0}, *shard, true, augment, copy, of.channels_last);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(at::equal(found[i], expected[i]))
            << text_of(of.size) << ", case " << (&of - cases) << ", batch " << i;
    }
  }
}

// Also in the last batch, after which no other batch is fed.
TEST_F(GpuPacked, ADamagedSampleEndsTheEpochWithAnError) {
  const auto shard = mixed_shard(dir);
  for (const size_t damaged : {0, 4, 18})
    for (const Toggle copy : {Toggle::kOff, Toggle::kOn}) {
      const ChangedDataset data = with_damage(shard, damaged);
      const Error error = error_of([&] { images_on({at::kCUDA, 0}, data, true, crops(96), copy); });
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      Sample sample;
      data.read(damaged, sample);
      EXPECT_EQ(error.where(), sample.name);
    }
}

TEST_F(GpuPacked, AnEpochThatEndsEarlyStillReportsDamage) {
  const auto shard = mixed_shard(dir);
  const ChangedDataset data(shard, [](size_t index, Sample& sample) {
    if (index < kJpegsInSegments && index % 2 == 0) damage_codes(sample);
  });
  LoaderOptions options = packing_options(true);
  options.shuffle.mode = ShuffleMode::kNone;
  const at::Device device(at::kCUDA, 0);
  Loader loader(data, options, crops(96), batch_allocator(device));
  Ledger ledger(Env::posix());
  Feeder feeder(loader, device, true, ledger, crops(96));
  feeder.start_epoch(0);
  DeviceBatch batch;
  ASSERT_TRUE(feeder.next(batch)) << "no call has waited for the device yet";
  EXPECT_EQ(error_of([&] { feeder.stop(); }).kind(), ErrorKind::kData);
  EXPECT_EQ(error_of([&] { feeder.stop(); }).kind(), ErrorKind::kData) << "it was forgotten";
  EXPECT_EQ(error_of([&] { feeder.next(batch); }).kind(), ErrorKind::kData);
}

TEST_F(GpuPacked, DamageInABatchThatNoStepHasSeenIsNoError) {
  const auto shard = mixed_shard(dir);
  LoaderOptions options = packing_options(true);
  options.shuffle.mode = ShuffleMode::kNone;
  const ChangedDataset data(shard, [&](size_t index, Sample& sample) {
    if (index >= options.batch && index < kJpegsInSegments && index % 2 == 0) damage_codes(sample);
  });
  ASSERT_LT(options.batch, kJpegsInSegments);
  const at::Device device(at::kCUDA, 0);
  Loader loader(data, options, crops(96), batch_allocator(device));
  Ledger ledger(Env::posix());
  Feeder feeder(loader, device, true, ledger, crops(96));
  feeder.use_pipeline({{.copy = Toggle::kOn}});
  feeder.start_epoch(0);
  while (loader.ready() < 2) std::this_thread::yield();
  DeviceBatch batch;
  ASSERT_TRUE(feeder.next(batch)) << "and another batch is in flight";
  EXPECT_NO_THROW(feeder.stop());
  feeder.start_epoch(0);
  EXPECT_EQ(error_of([&] {
              while (feeder.next(batch)) continue;
            }).kind(),
            ErrorKind::kData);
}

}  // namespace
}  // namespace saturate::testing
