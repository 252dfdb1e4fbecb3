// The CUDA kernel's launcher against the CPU's: the same passes over the same pixels.
#ifdef SATURATE_HAS_CUDA
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "saturate/data/effects.h"
#include "tests/gpu_testing.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

constexpr int64_t kCount = 64;

// Effects drawn as in a run, with everything switched on.
std::vector<EffectList> drawn_lists(int size) {
  AugmentOptions options;
  options.size = size;
  options.rotate = 30;
  options.brightness = options.contrast = options.saturation = 0.4;
  options.hue = 0.1;
  options.grey = options.blur = options.erase = 0.5;
  options.gaussian_noise = 0.05;
  std::vector<EffectList> lists;
  for (uint64_t index = 0; index < kCount; ++index)
    lists.push_back(draw_effects(options, {1, 0, index}));
  return lists;
}

// Bytes on a device; freed with the tensor.
template <class T>
at::Tensor bytes_of_vector(const std::vector<T>& values, const at::Device& device) {
  return at::from_blob(const_cast<T*>(values.data()), {int64_t(values.size() * sizeof(T))},
                       at::TensorOptions(at::kByte))
      .to(device, /*non_blocking=*/false, /*copy=*/true);
}

constexpr std::pair<PixelType, at::ScalarType> kOutputs[] = {{PixelType::kFloat32, at::kFloat},
                                                             {PixelType::kBfloat16, at::kBFloat16},
                                                             {PixelType::kFloat16, at::kHalf}};

// `batch` on a device, which has its images and the cached images that it points to; as floats.
at::Tensor finished_on(const at::Device& device, FinishArguments batch, const at::Tensor& images,
                       const std::vector<EffectList>& lists, at::ScalarType type) {
  at::Tensor pixels = images.to(device, /*non_blocking=*/false, /*copy=*/true);
  at::Tensor spare = at::empty_like(pixels), effects = bytes_of_vector(lists, device);
  at::Tensor out = at::empty(pixels.sizes(), pixels.options().dtype(type));
  at::Tensor rows = at::empty(pixels.sizes(), pixels.options().dtype(at::kFloat));
  batch.images = pixels.mutable_data_ptr<uint8_t>();
  batch.effects = reinterpret_cast<const EffectList*>(effects.const_data_ptr());
  batch.spare = spare.mutable_data_ptr<uint8_t>();
  batch.count = images.size(0);
  batch.size = {int(images.size(1)), int(images.size(2))};
  batch.normalize = {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}};
  batch.out = out.mutable_data_ptr();
  batch.rows = rows.mutable_data_ptr<float>();
  // The default stream, which is torch's too.
  device.is_cuda() ? finish_batch_cuda(batch, nullptr) : finish_batch_cpu(batch);
  return out.cpu().to(at::kFloat);
}

TEST(GpuKernel, FinishedBatchesEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  for (const int size : {7, 32, 224}) {
    const std::vector<EffectList> lists = drawn_lists(size);
    const at::Tensor images = at::randint(256, {kCount, size, size, 3}, at::kByte);
    const auto finish = [&](const at::Device& device) {
      return finished_on(device, {}, images, lists, at::kFloat);
    };
    const at::Tensor difference = (finish(at::kCUDA) - finish(at::kCPU)).abs();
    // A blur's weights may differ in their last bits, which changes a level now and then.
    EXPECT_LE(difference.max().item<float>(), 0.02) << "size " << size;
    EXPECT_LE((difference > 1e-6).to(at::kDouble).mean().item<double>(), 1e-3) << "size " << size;
  }
}

// Without a blur all bits are the CPU's: in every type, by one block per image and by several.
TEST(GpuKernel, EveryTypeAndBlockCountHasTheCpusBits) {
  SATURATE_NEEDS_GPU();
  for (const int size : {7, 97, 224}) {
    std::vector<EffectList> lists = drawn_lists(size);
    for (EffectList& list : lists)
      for (int n = 0; n < list.count; ++n)
        if (list.effect[n].kind == EffectKind::kBlur) list.effect[n] = {EffectKind::kGrey, {}};
    for (size_t i = 0; i < lists.size(); i += 2) lists[i].count = std::min(lists[i].count, 2);
    for (const int64_t count : {int64_t{3}, kCount}) {
      const at::Tensor images = at::randint(256, {count, size, size, 3}, at::kByte);
      for (const auto& [type, torchs] : kOutputs) {
        FinishArguments batch{};
        batch.type = type;
        EXPECT_TRUE(finished_on(at::kCUDA, batch, images, lists, torchs)
                        .equal(finished_on(at::kCPU, batch, images, lists, torchs)))
            << "size " << size << ", " << count << " images, " << torchs;
      }
    }
  }
}

// Cropped from whole photographs in GPU memory.
TEST(GpuKernel, RandomResizedCropsHaveTheCpusBits) {
  SATURATE_NEEDS_GPU();
  constexpr int kSide = 96, kWidth = 301, kHeight = 203;
  AugmentOptions options;
  options.size = kSide;
  options.crop = CropKind::kRandomResized;
  std::vector<HeldPlace> places;
  for (uint64_t i = 0; i < kCount; ++i) {
    RandomStream random(1, 0, i, RandomUse::kAugment);
    const SampleTransform drawn = draw_transform(options, random, kWidth, kHeight);
    places.push_back({uint32_t(i % 2), 0, 0, drawn.flip ? 1 : 0, drawn.crop});
  }
  const std::vector<EffectList> lists(kCount);
  const ResizeFilters filters = resize_filters(kWidth, kSide);
  const at::Tensor photographs = at::randint(256, {2, kHeight, kWidth, 3}, at::kByte);
  const at::Tensor images = at::empty({kCount, kSide, kSide, 3}, at::kByte);
  const auto finish = [&](const at::Device& device) {
    const at::Tensor held = photographs.to(device), taken = bytes_of_vector(places, device);
    const auto* pixels = held.const_data_ptr<uint8_t>();
    const at::Tensor photos = bytes_of_vector<HeldPhoto>(
        {{pixels, kWidth, kHeight}, {pixels + kWidth * kHeight * 3, kWidth, kHeight}}, device);
    const at::Tensor by_length = bytes_of_vector(filters.by_length, device);
    const at::Tensor values = bytes_of_vector(filters.values, device);
    FinishArguments batch{};
    batch.places = reinterpret_cast<const HeldPlace*>(taken.const_data_ptr());
    batch.photos = reinterpret_cast<const HeldPhoto*>(photos.const_data_ptr());
    batch.filters = reinterpret_cast<const HeldFilter*>(by_length.const_data_ptr());
    batch.filter_values = reinterpret_cast<const int16_t*>(values.const_data_ptr());
    return finished_on(device, batch, images, lists, at::kFloat);
  };
  EXPECT_TRUE(finish(at::kCUDA).equal(finish(at::kCPU)));
}

// Volumes of values and of labels, warped as in a run; a gamma's last bits may differ.
TEST(GpuKernel, TransformedVolumesEqualTheCpus) {
  SATURATE_NEEDS_GPU();
  AugmentOptions options;
  options.crop = CropKind::kRandom;
  options.size = 32;
  options.rotate = 30;
  options.zoom = options.translate = 0.2;
  options.brightness = 0.3;
  options.gaussian_noise = 0.1;
  const at::Tensor levels = at::randint(256, {8, 40, 36, 48, 2}, at::kByte);
  for (const VoxelType type : {VoxelType::kFloat32, VoxelType::kUint8, VoxelType::kLabel8})
    for (const PadMode mode : {PadMode::kZero, PadMode::kReflect})
      for (const bool gamma : {false, true}) {
        VolumeForm form{{40, 36, 48}, {}, 2, type, mode, 255};
        set_volume_size(options, form.in, form.out);
        options.contrast = gamma ? 0.5 : 0;
        options.contrast_gamma = gamma;
        std::vector<VolumeEffects> effects;
        for (uint64_t i = 0; i < 8; ++i)
          effects.push_back(draw_volume(options, {1, 0, i}, form, {0, 255, 128}));
        const auto transform = [&](const at::Device& device) {
          const at::Tensor in =
              levels.to(type == VoxelType::kFloat32 ? at::kFloat : at::kByte).to(device);
          const at::Tensor records = bytes_of_vector(effects, device);
          const at::Tensor out =
              at::empty({8, form.out[0], form.out[1], form.out[2], 2}, in.options());
          const VolumeArguments batch{form, in.const_data_ptr(),
                                      static_cast<const VolumeEffects*>(records.const_data_ptr()),
                                      out.mutable_data_ptr(), 8};
          device.is_cuda() ? transform_volumes_cuda(batch, nullptr) : transform_volumes_cpu(batch);
          return out.cpu().to(at::kFloat);
        };
        const at::Tensor difference = (transform(at::kCUDA) - transform(at::kCPU)).abs();
        const float allowed = !gamma ? 0 : type == VoxelType::kUint8 ? 1 : 1e-3f;
        EXPECT_LE(difference.max().item<float>(), allowed) << int(type) << int(mode) << gamma;
      }
}

// Packed JPEGs of every sampling beside decoded samples, more than teams; some are damaged. As
// bytes, and normalised by the same kernel.
TEST(GpuKernel, UnpackedJpegsHaveTheCpusBits) {
  SATURATE_NEEDS_GPU();
  testing::MixedBatch drawn(48);
  constexpr size_t kCopies = 13;
  const ImageSize size = drawn.size;
  *drawn.sample(2) = std::byte{0};
  drawn.damage(5);
  drawn.repeat(kCopies);
  const auto count = int64_t(drawn.places.size());
  const auto unpack = [&](const at::Device& device, PixelType type, bool planar) {
    const at::Tensor memory = bytes_of_vector(drawn.memory, device);
    const at::Tensor places = bytes_of_vector(drawn.places, device);
    const at::Tensor out =
        at::empty({count * int64_t(pixel_bytes(size) * bytes_of(type))}, memory.options());
    const at::Tensor failed = at::empty({count}, memory.options());
    const at::Tensor scratch = at::empty(
        {int64_t(unpack_teams(count)) * int64_t(unpack_scratch_bytes(size))}, memory.options());
    const UnpackArguments batch{static_cast<const std::byte*>(memory.const_data_ptr()),
                                static_cast<const PackedPlace*>(places.const_data_ptr()),
                                count,
                                size,
                                scratch.mutable_data_ptr<uint8_t>(),
                                out.mutable_data_ptr<uint8_t>(),
                                failed.mutable_data_ptr<uint8_t>(),
                                {type, {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}}},
                                planar};
    device.is_cuda() ? unpack_jpegs_cuda(batch, nullptr) : unpack_jpegs_cpu(batch);
    return std::pair(out.cpu(), failed.cpu());
  };
  for (const auto& [type, planar] : {std::pair{PixelType::kUint8, false},
                                     {PixelType::kFloat32, false},
                                     {PixelType::kFloat32, true},
                                     {PixelType::kBfloat16, false},
                                     {PixelType::kFloat16, true}}) {
    SCOPED_TRACE("type " + std::to_string(int(type)) + (planar ? ", planar" : ""));
    const auto gpu = unpack(at::kCUDA, type, planar), cpu = unpack(at::kCPU, type, planar);
    EXPECT_TRUE(gpu.first.equal(cpu.first));
    EXPECT_TRUE(gpu.second.equal(cpu.second));
    EXPECT_EQ(cpu.second.sum().item<int64_t>(), 2 * int64_t{kCopies});
  }
}

}  // namespace
}  // namespace saturate
#endif
