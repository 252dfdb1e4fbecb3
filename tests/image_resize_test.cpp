#include <gtest/gtest.h>

#include <cstdlib>

#include "image/blend.h"
#include "saturate/data/augment.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

using testing::decoded_input;
using testing::golden;
using testing::golden_lines;

TEST(Resizer, DiffersFromTorchvisionByAtMostOneLevel) {
  std::ifstream file(golden("resize.bin"), std::ios::binary);
  Resizer resizer;
  size_t values = 0, different = 0, cases = 0;
  for (auto& line : golden_lines("resize.txt")) {
    std::string name;
    Box box;
    int width = 0, height = 0;
    line >> name >> box.x >> box.y >> box.width >> box.height >> width >> height;
    std::vector<uint8_t> ours(size_t(width) * size_t(height) * 3), theirs(ours.size());
    file.read(reinterpret_cast<char*>(theirs.data()), std::streamsize(theirs.size()));
    ASSERT_TRUE(file.good());
    resizer.resize(decoded_input(name), box, width, height, ours.data());
    int worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const int difference = std::abs(int(ours[i]) - int(theirs[i]));
      worst = std::max(worst, difference);
      different += difference != 0;
    }
    EXPECT_LE(worst, 1) << line.str();
    values += ours.size();
    ++cases;
  }
  EXPECT_EQ(cases, 19u);
  // The order of the passes rounds some values differently; a wrong filter would change many more.
  EXPECT_LT(double(different) / double(values), 0.15);
  RecordProperty("share_different", std::to_string(double(different) / double(values)));
}

TEST(Resizer, SameSizeCopies) {
  const Image image = decoded_input("rgb_444.jpg");
  std::vector<uint8_t> out(image.pixels.size());
  Resizer().resize(image, {0, 0, image.width, image.height}, image.width, image.height, out.data());
  EXPECT_EQ(out, image.pixels);
}

TEST(Resizer, AUniformColourStaysTheSame) {
  Resizer resizer;
  for (const int value : {0, 1, 127, 254, 255}) {
    Image image;
    image.resize(53, 41);
    std::fill(image.pixels.begin(), image.pixels.end(), uint8_t(value));
    for (const int size : {1, 7, 40, 41, 53, 200}) {
      std::vector<uint8_t> out(size_t(size) * size_t(size) * 3);
      resizer.resize(image, {0, 0, 53, 41}, size, size, out.data());
      for (const uint8_t level : out) ASSERT_EQ(level, value) << size;
    }
  }
}

TEST(Resizer, PixelsOutsideTheBoxHaveNoInfluence) {
  Image image = decoded_input("rgb_444.jpg");
  const Box box{20, 10, 40, 30};
  Resizer resizer;
  std::vector<uint8_t> before(32 * 32 * 3), after(before.size());
  resizer.resize(image, box, 32, 32, before.data());
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      if (x < 20 || x >= 60 || y < 10 || y >= 40) image.row(y)[x * 3] ^= 0xff;
  resizer.resize(image, box, 32, 32, after.data());
  EXPECT_EQ(before, after);
}

TEST(Blend, FastEqualsPlain) {
  RandomStream random(1, 0, 0, RandomUse::kSynthetic);
  for (const int taps : {1, 2, 3, 4, 5, 8, 13}) {
    const int pitch = (taps + 1) / 2 * 2, precision = 15;
    for (const int n : {1, 5, 15, 16, 17, 31, 64, 100}) {
      std::vector<int16_t> weight(size_t(n * pitch));
      std::vector<int> first(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) {
        first[size_t(i)] = int(random.below(50));
        for (int k = 0; k < taps; ++k)
          weight[size_t(i * pitch + k)] = int16_t(random.below((1u << precision) / unsigned(taps)));
      }
      std::vector<uint8_t> in(size_t(taps) * 128 + 200 + kBlendSlack);
      for (auto& value : in) value = uint8_t(random.below(256));
      const BlendFilter filter{weight.data(), taps, pitch, precision};
      std::vector<uint8_t> fast(size_t(n) * 3), plain(size_t(n) * 3);
      blend_rows(filter, in.data(), 128, fast.data(), n);
      blend_rows_plain(filter, in.data(), 128, plain.data(), n);
      EXPECT_EQ(fast, plain) << taps << " taps, " << n;
      blend_pixels(filter, in.data(), first.data(), fast.data(), n);
      blend_pixels_plain(filter, in.data(), first.data(), plain.data(), n);
      EXPECT_EQ(fast, plain) << taps << " taps, " << n;
    }
  }
}

}  // namespace
}  // namespace saturate
