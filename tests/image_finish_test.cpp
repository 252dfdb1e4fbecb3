// The kernel's passes with its CPU version: every type, size and memory alignment, each image in
// one part and in several, compared with the loader's apply_transform, apply_effects and
// convert_pixels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "image/finish_passes.h"
#include "saturate/data/augment.h"
#include "tests/unpack_testing.h"

namespace saturate {
namespace {

constexpr Normalize kFinishBy = {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}};
constexpr PixelType kFinishTypes[] = {PixelType::kFloat32, PixelType::kBfloat16,
                                      PixelType::kFloat16};

std::vector<uint8_t> noise_levels(size_t count, uint64_t seed) {
  RandomStream random(seed, 0, 0, RandomUse::kAugment);
  std::vector<uint8_t> levels(count);
  for (uint8_t& level : levels) level = static_cast<uint8_t>(random.below(256));
  return levels;
}

// Lists of only per-pixel effects, and other lists.
std::vector<EffectList> mixed_lists(const ImageSize& size) {
  const Effect affine = {EffectKind::kAffine, {0.9f, 0.3f, 1, -0.3f, 0.9f, -1}};
  const Effect erase = {EffectKind::kErase, {0, 0, float((size.width + 1) / 2), 1, 9, 8, 7}};
  const std::vector<std::vector<Effect>> made = {
      {},
      {affine},
      {affine, {EffectKind::kBrightness, {1.3f}}, {EffectKind::kHue, {0.1f}}, erase},
      {erase, {EffectKind::kSolarize, {100}}, {EffectKind::kPosterize, {3}}},
      {{EffectKind::kSaturation, {1.4f}}, {EffectKind::kGrey, {}}},
      {{EffectKind::kContrast, {0.7f}}, {EffectKind::kEqualize, {}}},
      {affine, {EffectKind::kNoise, {40, 7, 9}}, erase},
      {{EffectKind::kBlur, {1.1f}}, affine},
      {affine, {EffectKind::kAutocontrast, {}}, {EffectKind::kSharpness, {1.7f}}}};
  std::vector<EffectList> lists;
  for (const std::vector<Effect>& effects : made) {
    EffectList& list = lists.emplace_back();
    for (const Effect& effect : effects) list.add(effect.kind) = effect;
  }
  return lists;
}

// Memory that begins `offset` bytes after a multiple of 64.
class Displaced {
 public:
  Displaced(size_t bytes, size_t offset) : memory_(bytes + 128), offset_(offset) {}
  template <class T>
  T* as() {
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<T*>(memory_.data() + (64 - begin % 64) % 64 + offset_);
  }

 private:
  std::vector<std::byte> memory_;
  const size_t offset_;
};

// Images side by side, as the loader's threads finish them: effects, then conversion.
std::vector<std::byte> finished_by_loader(std::vector<uint8_t> images,
                                          const std::vector<EffectList>& lists,
                                          const ImageSize& size, PixelType type) {
  const size_t values = size_t(size.area()) * 3;
  std::vector<std::byte> out(images.size() * bytes_of(type));
  EffectScratch scratch;
  for (size_t i = 0; i < lists.size(); ++i) {
    apply_effects(lists[i], size, scratch, images.data() + i * values);
    convert_pixels({type, kFinishBy}, std::span(images).subspan(i * values, values),
                   out.data() + i * values * bytes_of(type));
  }
  return out;
}

struct Displacement {
  size_t images = 0, out = 0;  // bytes
};

// The same by the kernel's passes, each image in `parts`, the last part first.
std::vector<std::byte> finished_by_passes(FinishArguments batch, const std::vector<uint8_t>& images,
                                          const std::vector<EffectList>& lists, int parts,
                                          const Displacement& moved = {}) {
  const size_t values = lists.size() * size_t(batch.size.area()) * 3;
  const size_t bytes = values * bytes_of(batch.type);
  Displaced in(values, moved.images), spare(values, moved.images), out(bytes, moved.out);
  Displaced rows(values * sizeof(float), 0);
  if (!images.empty()) std::memcpy(in.as<uint8_t>(), images.data(), values);
  batch.images = in.as<uint8_t>();
  batch.effects = lists.data();
  batch.spare = spare.as<uint8_t>();
  batch.count = int64_t(lists.size());
  batch.normalize = kFinishBy;
  batch.out = out.as<std::byte>();
  if (batch.type != PixelType::kFloat32) batch.rows = rows.as<float>();
  LoneTeam team;
  FinishState state;
  for (int64_t i = 0; i < batch.count; ++i)
    for (int part = parts - 1; part >= 0; --part) finish_image(team, batch, i, part, parts, state);
  return {out.as<std::byte>(), out.as<std::byte>() + bytes};
}

FinishArguments batch_of(const ImageSize& size, PixelType type) {
  FinishArguments batch{};
  batch.size = size;
  batch.type = type;
  return batch;
}

TEST(FinishPasses, EqualTheLoaderInEveryTypeSizeAndAlignment) {
  for (const ImageSize size :
       std::initializer_list<ImageSize>{1, 2, 5, 7, 16, 30, 33, {5, 9}, {31, 1}, {16, 40}}) {
    const std::vector<EffectList> lists = mixed_lists(size);
    const auto images = noise_levels(lists.size() * size_t(size.area()) * 3, 3);
    for (const PixelType type : kFinishTypes) {
      const auto expected = finished_by_loader(images, lists, size, type);
      const size_t bytes = bytes_of(type);
      for (const Displacement moved :
           {Displacement{}, {1, 0}, {5, bytes}, {0, 3 * bytes}, {4, 4 * bytes}, {8, 8 * bytes}})
        EXPECT_EQ(finished_by_passes(batch_of(size, type), images, lists, 1, moved), expected)
            << "size " << text_of(size) << ", type " << int(type) << ", moved by " << moved.images
            << " and " << moved.out;
    }
  }
}

TEST(FinishPasses, SeveralPartsGiveTheSameImage) {
  for (const ImageSize size : std::initializer_list<ImageSize>{7, 64, 97, {40, 90}, {77, 33}}) {
    const std::vector<EffectList> lists = mixed_lists(size);
    const auto images = noise_levels(lists.size() * size_t(size.area()) * 3, 4);
    for (const PixelType type : kFinishTypes) {
      const auto expected = finished_by_loader(images, lists, size, type);
      for (const int parts : {2, 3, 5, 8})
        EXPECT_EQ(finished_by_passes(batch_of(size, type), images, lists, parts), expected)
            << "size " << text_of(size) << ", type " << int(type) << ", parts " << parts;
    }
  }
}

TEST(FinishPasses, TheNumberOfPartsFillsAGpuWithoutEmptyParts) {
  EXPECT_EQ(finish_parts(512, 224), 1);
  EXPECT_EQ(finish_parts(4096, 224), 1);
  EXPECT_EQ(finish_parts(64, 224), 8);
  EXPECT_EQ(finish_parts(1, 224), 25);  // strips of 2,048 pixels
  EXPECT_EQ(finish_parts(1, 32), 1);
  EXPECT_EQ(finish_parts(0, 32), 1);
}

// Images cached at their final size, seen through a moved window.
TEST(FinishPasses, CachedImagesEqualTheLoaders) {
  for (const ImageSize size : std::initializer_list<ImageSize>{5, 32, 97, {40, 90}, {77, 33}}) {
    const std::vector<EffectList> lists = mixed_lists(size);
    const size_t values = size_t(size.area()) * 3;
    const auto held = noise_levels(3 * values, 5);
    AugmentOptions options;
    options.size = size;
    options.crop = CropKind::kPad;
    for (const PadMode mode : {PadMode::kZero, PadMode::kReflect}) {
      options.pad_mode = mode;
      std::vector<HeldPlace> places;
      std::vector<uint8_t> images(lists.size() * values);
      Resizer resizer;
      for (size_t i = 0; i < lists.size(); ++i) {
        const HeldPlace place{uint32_t(i % 3), int16_t(int(i % 5) - 2), int16_t(int(i % 4) - 1),
                              int32_t(i % 2)};
        const auto* from = held.data() + place.index * values;
        places.push_back(place);
        apply_transform(
            options,
            {{0, 0, size.width, size.height}, place.shift_x, place.shift_y, place.flip == 1},
            {size.width, size.height, {from, from + values}}, resizer, images.data() + i * values);
      }
      for (const PixelType type : kFinishTypes) {
        FinishArguments batch = batch_of(size, type);
        batch.held = held.data();
        batch.places = places.data();
        batch.pad_mode = mode;
        const auto expected = finished_by_loader(images, lists, size, type);
        for (const int parts : {1, 3})
          EXPECT_EQ(finished_by_passes(batch, {}, lists, parts), expected)
              << "size " << text_of(size) << ", padded " << int(mode) << ", type " << int(type);
      }
    }
  }
}

// Whole photographs, cropped and resized: larger, smaller, of equal size, to one pixel, and up.
void expect_equal_crops(const ImageSize& size) {
  constexpr int kLongest = 211;
  const size_t values = size_t(size.area()) * 3;
  const std::vector<EffectList> lists = mixed_lists(size);
  const std::vector<std::pair<int, int>> sizes = {{211, 97}, {48, 48}, {20, 131}, {1, 1}};
  std::vector<Image> photos;
  std::vector<HeldPhoto> table;
  for (const auto& [width, height] : sizes)
    photos.push_back(
        {width, height, noise_levels(size_t(width) * size_t(height) * 3, uint64_t(width))});
  for (const Image& photo : photos)
    table.push_back({photo.pixels.data(), photo.width, photo.height});
  const ResizeFilters filters = resize_filters(kLongest, size);
  AugmentOptions options;
  options.size = size;
  options.crop = CropKind::kRandomResized;
  std::vector<EffectList> all;
  std::vector<HeldPlace> places;
  std::vector<uint8_t> images(16 * lists.size() * values);
  Resizer resizer;
  for (size_t i = 0; i < 16 * lists.size(); ++i) {
    const Image& photo = photos[i % photos.size()];
    RandomStream random(1, 2, i, RandomUse::kAugment);
    const SampleTransform drawn = draw_transform(options, random, photo.width, photo.height);
    places.push_back({uint32_t(i % photos.size()), 0, 0, drawn.flip ? 1 : 0, drawn.crop});
    all.push_back(lists[i / 4 % lists.size()]);
    apply_transform(options, drawn, photo, resizer, images.data() + i * values);
  }
  FinishArguments batch = batch_of(size, PixelType::kFloat32);
  batch.places = places.data();
  batch.photos = table.data();
  batch.filters = filters.by_length.data();
  batch.down = size.is_square() ? 0 : kLongest + 1;
  batch.filter_values = filters.values.data();
  const auto expected = finished_by_loader(images, all, size, batch.type);
  for (const int parts : {1, 2})
    EXPECT_EQ(finished_by_passes(batch, {}, all, parts), expected)
        << "size " << text_of(size) << ", parts " << parts;
}

TEST(FinishPasses, CropsOfCachedPhotographsEqualTheResizers) {
  for (const ImageSize size : std::initializer_list<ImageSize>{48, {30, 53}, {61, 24}})
    expect_equal_crops(size);
}

// Rounding is monotonic, so the floats at and beside each midpoint cover all between.
TEST(Float16, RoundsToNearestEven) {
  const auto value_of = [](int half) {  // of a positive one
    const int exponent = half >> 10, fraction = half & 0x3ff;
    return exponent == 0 ? std::ldexp(float(fraction), -24)
                         : std::ldexp(float(1024 + fraction), exponent - 25);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (int half = 0; half < 0x7c00; ++half) {
    const float low = value_of(half), middle = (low + value_of(half + 1)) / 2;
    const int even = half + half % 2;
    ASSERT_EQ(to_float16(low), half);
    ASSERT_EQ(to_float16(-low), half | 0x8000);
    ASSERT_EQ(to_float16(middle), even);
    ASSERT_EQ(to_float16(-middle), even | 0x8000);
    ASSERT_EQ(to_float16(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(to_float16(std::nextafter(middle, infinity)), half + 1);
  }
  for (const float large : {65536.0f, 100000.0f, 131072.0f, 3e38f, infinity}) {
    EXPECT_EQ(to_float16(large), 0x7c00) << large;
    EXPECT_EQ(to_float16(-large), 0xfc00) << large;
  }
}

// Packed JPEGs, one of which is damaged, beside decoded samples.
TEST(Unpack, EveryTypeAndLayoutHasTheConvertedPixels) {
  testing::MixedBatch batch(12);
  batch.damage(2);
  const size_t values = pixel_bytes(batch.size);
  const std::span<const uint8_t> levels(batch.expected);
  for (const PixelType type : kFinishTypes)
    for (const bool planar : {false, true}) {
      const PixelFormat format{type, kFinishBy};
      const testing::Unpacked found = testing::unpack_places(
          unpack_jpegs_cpu, batch.memory, batch.places, batch.size, format, planar);
      std::vector<std::byte> expected(levels.size() * bytes_of(type));
      for (size_t i = 0; i < levels.size(); i += values)
        (planar ? convert_to_planes : convert_pixels)(format, levels.subspan(i, values),
                                                      expected.data() + i * bytes_of(type));
      EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(found.pixels)), expected))
          << "type " << int(type) << ", planar " << planar;
      EXPECT_EQ(found.failed[2], 1);
    }
}

}  // namespace
}  // namespace saturate
