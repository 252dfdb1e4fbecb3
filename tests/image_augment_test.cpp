#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "saturate/data/augment.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

using testing::crc;
using testing::decoded_input;
using testing::golden_lines;

AugmentOptions options_of(CropKind kind, int size) {
  AugmentOptions options;
  options.crop = kind;
  options.size = size;
  return options;
}

RandomStream stream(uint64_t index) {
  return {7, 0, index, RandomUse::kAugment};
}

std::vector<uint8_t> applied(const AugmentOptions& options, const SampleTransform& transform,
                             const Image& image) {
  std::vector<uint8_t> out(size_t(options.size.area()) * 3);
  Resizer resizer;
  apply_transform(options, transform, image, resizer, out.data());
  return out;
}

TEST(CropPadded, EqualsTorchvision) {
  size_t cases = 0;
  for (auto& line : golden_lines("crop.txt")) {
    std::string name, mode_name, checksum;
    int padding = 0, top = 0, left = 0, height = 0, width = 0, flip = 0;
    line >> name >> padding >> mode_name >> top >> left >> height >> width >> flip >> checksum;
    const PadMode mode = mode_name == "reflect" ? PadMode::kReflect : PadMode::kZero;
    Image cut;
    cut.resize(width, height);
    crop_padded(decoded_input(name), {left - padding, top - padding, width, height}, mode,
                cut.pixels.data());
    if (flip != 0) {
      const Image upright = cut;
      for (int y = 0; y < height; ++y)
        for (int i = 0; i < width * 3; ++i)
          cut.row(y)[i] = upright.row(y)[(width - 1 - i / 3) * 3 + i % 3];
    }
    EXPECT_EQ(crc(cut.pixels), checksum) << line.str();
    ++cases;
  }
  EXPECT_EQ(cases, 14u);
}

// The same cases through a whole transform, with square output.
TEST(ApplyTransform, ShiftAndFlipEqualTorchvision) {
  size_t cases = 0;
  for (auto& line : golden_lines("crop.txt")) {
    std::string name, mode_name, checksum;
    int padding = 0, top = 0, left = 0, height = 0, width = 0, flip = 0;
    line >> name >> padding >> mode_name >> top >> left >> height >> width >> flip >> checksum;
    if (height != 64 || width != 64) continue;
    AugmentOptions options = options_of(CropKind::kPad, 64);
    options.pad_mode = mode_name == "reflect" ? PadMode::kReflect : PadMode::kZero;
    const SampleTransform transform{{0, 0, 64, 64}, left - padding, top - padding, flip != 0};
    EXPECT_EQ(crc(applied(options, transform, decoded_input(name))), checksum) << line.str();
    ++cases;
  }
  EXPECT_EQ(cases, 10u);
}

TEST(ApplyTransform, PadResizesFirst) {
  const Image image = decoded_input("rgb_444.jpg");  // 97 x 61
  AugmentOptions options = options_of(CropKind::kPad, 32);
  Image resized;
  resized.resize(32, 32);
  Resizer().resize(image, {0, 0, 97, 61}, 32, 32, resized.pixels.data());
  std::vector<uint8_t> expected(32 * 32 * 3);
  crop_padded(resized, {3, -2, 32, 32}, PadMode::kZero, expected.data());
  EXPECT_EQ(applied(options, {{0, 0, 97, 61}, 3, -2, false}, image), expected);
}

TEST(DrawTransform, PadShiftsUniformlyWithinThePadding) {
  const AugmentOptions options = options_of(CropKind::kPad, 32);
  std::map<std::pair<int, int>, int> seen;
  int flips = 0;
  constexpr int kDraws = 81 * 500;
  for (int i = 0; i < kDraws; ++i) {
    RandomStream random = stream(uint64_t(i));
    const SampleTransform transform = draw_transform(options, random, 40, 30);
    EXPECT_TRUE((transform.crop == Box{0, 0, 40, 30}));
    ++seen[{transform.shift_x, transform.shift_y}];
    flips += transform.flip;
  }
  EXPECT_EQ(seen.size(), 81u);  // (2 * 4 + 1)^2
  EXPECT_EQ(seen.begin()->first, std::pair(-4, -4));
  EXPECT_EQ(seen.rbegin()->first, std::pair(4, 4));
  double chi_square = 0;
  for (const auto& [shift, count] : seen) chi_square += (count - 500) * (count - 500) / 500.0;
  EXPECT_LT(chi_square, 125);  // 80 degrees of freedom, p = 0.001
  EXPECT_NEAR(double(flips) / kDraws, 0.5, 0.01);
}

TEST(DrawTransform, NoneIsTheWholeImageAndCenterIsEvaluations) {
  AugmentOptions options = options_of(CropKind::kNone, 32);
  options.flip = 0;
  RandomStream random = stream(0);
  const SampleTransform whole = draw_transform(options, random, 50, 20);
  EXPECT_TRUE((whole.crop == Box{0, 0, 50, 20}));
  EXPECT_FALSE(whole.flip);
  options.crop = CropKind::kCenter;
  options.eval_resize = 1.25;
  EXPECT_TRUE(draw_transform(options, random, 50, 20).crop == eval_transform(options, 50, 20).crop);
}

TEST(EvalTransform, IsTheCentreCropAfterResizing) {
  AugmentOptions options = options_of(CropKind::kRandomResized, 224);
  options.eval_resize = 256.0 / 224;
  EXPECT_TRUE((eval_transform(options, 500, 375).crop == Box{86, 23, 328, 328}));
  EXPECT_TRUE((eval_transform(options, 375, 500).crop == Box{23, 86, 328, 328}));
  EXPECT_TRUE((eval_transform(options, 1, 9).crop == Box{0, 4, 1, 1}));
  EXPECT_FALSE(eval_transform(options, 500, 375).flip);
  options.eval_resize = 0.5;  // limited by the image
  EXPECT_TRUE((eval_transform(options, 500, 375).crop == Box{62, 0, 375, 375}));
  options.crop = CropKind::kNone;
  EXPECT_TRUE((eval_transform(options, 500, 375).crop == Box{0, 0, 500, 375}));
}

// Kolmogorov-Smirnov test against 1e5 draws of torchvision's make_params.
TEST(RandomResizedCrop, IsDistributedLikeTorchvisions) {
  constexpr int kDraws = 100000;
  size_t cases = 0;
  for (auto& line : golden_lines("random_resized_crop.txt")) {
    int width = 0, height = 0;
    double scale_min = 0, scale_max = 0, ratio_min = 0, ratio_max = 0;
    std::string quantity;
    line >> width >> height >> scale_min >> scale_max >> ratio_min >> ratio_max >> quantity;
    std::vector<double> values;
    for (int i = 0; i < kDraws; ++i) {
      RandomStream random = stream(uint64_t(i));
      const Box box =
          random_resized_crop(random, width, height, scale_min, scale_max, ratio_min, ratio_max);
      ASSERT_TRUE(box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0 &&
                  box.x + box.width <= width && box.y + box.height <= height);
      const std::map<std::string, double> all = {
          {"x", box.x},
          {"y", box.y},
          {"width", box.width},
          {"height", box.height},
          {"area", double(box.width) * box.height},
          {"ratio", std::floor(1000.0 * box.width / box.height)}};
      values.push_back(all.at(quantity));
    }
    EXPECT_LT(testing::share_distance(values, line), testing::share_limit(kDraws))
        << width << " x " << height << ", " << quantity;
    ++cases;
  }
  EXPECT_EQ(cases, 18u);
}

TEST(RandomResizedCrop, ExtremeImagesHaveABoxInside) {
  for (const auto& [width, height] : {std::pair(1, 1), {1, 5000}, {5000, 1}, {2, 3}}) {
    for (uint64_t i = 0; i < 200; ++i) {
      RandomStream random = stream(i);
      const Box box = random_resized_crop(random, width, height, 0.08, 1.0, 0.75, 4.0 / 3);
      EXPECT_TRUE(box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0);
      EXPECT_LE(box.x + box.width, width);
      EXPECT_LE(box.y + box.height, height);
    }
  }
}

TEST(Normalize, IsWithinOneMillionthOfTorchvision) {
  const Normalize normalize = make_normalize(AugmentOptions{});
  auto lines = golden_lines("normalize.txt");
  ASSERT_EQ(lines.size(), 256u);
  for (int value = 0; value < 256; ++value) {
    const std::vector<uint8_t> pixel(3, uint8_t(value));
    float out[3];
    normalize_pixels(normalize, pixel, out);
    for (const float got : out) {
      double expected = 0;
      lines[size_t(value)] >> expected;
      EXPECT_NEAR(got, expected, 1e-6) << value;
    }
  }
}

TEST(Normalize, InvalidMeanOrStdIsAnError) {
  AugmentOptions options;
  options.mean = {0.5};
  EXPECT_THROW(make_normalize(options), Error);
  options = {};
  options.std = {0.2, 0.0, 0.2};
  EXPECT_THROW(make_normalize(options), Error);
}

TEST(Normalize, ValuesThatOverflowAPrecisionAreRefused) {
  const auto refused = [](double mean, double deviation) {
    AugmentOptions options;
    options.mean = {0.5, mean, 0.5};
    options.std = {0.2, deviation, 0.2};
    return testing::error_of([&] { make_normalize(options); });
  };
  EXPECT_EQ(refused(0.5, 1e-300).where(), "augment.std");
  EXPECT_EQ(refused(0.5, 1e-6).where(), "augment.std");
  EXPECT_EQ(refused(1e6, 1).where(), "augment.mean");
  EXPECT_EQ(refused(0.5, 1e-6).kind(), ErrorKind::kUsage);
  EXPECT_NE(refused(0.5, 1e-6).reason().find("between -5e+05 and 5e+05"), std::string::npos);
  AugmentOptions of_bytes;  // unusual, but without overflow
  of_bytes.mean = {123, 117, 104};
  of_bytes.std = {1, 1, 1};
  EXPECT_NO_THROW(make_normalize(of_bytes));
}

}  // namespace
}  // namespace saturate
