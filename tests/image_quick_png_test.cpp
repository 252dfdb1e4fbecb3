// QuickPng returns libpng's pixels, or leaves a file to it.
#include <gtest/gtest.h>
#include <png.h>

#include <algorithm>
#include <string>
#include <vector>

#include "image/quick_png.h"
#include "tests/data_testing.h"
#include "tests/image_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::golden_input;

// The decoder's pixels are compared with Pillow's by Decoder.EveryKindOfFileEqualsPillow.
TEST(QuickPng, ReadsTheCommonKindsAndLeavesTheOthers) {
  QuickPng quick;
  Decoder decoder;
  Image image, expected;
  for (const auto& [name, common] : {std::pair{"rgb.png", true},
                                     {"rgba.png", true},
                                     {"grey_8.png", true},
                                     {"palette_8.png", true},
                                     {"palette_transparent.png", true},
                                     {"rgb_transparent_colour.png", true},
                                     {"exif_6.png", true},
                                     {"grey_1.png", false},
                                     {"grey_16.png", false},
                                     {"rgb_16.png", false},
                                     {"palette_4.png", false},
                                     {"grey_alpha.png", false},
                                     {"rgb_interlaced.png", false}}) {
    const auto file = golden_input(name);
    decoder.decode(file, name, expected);
    const bool turned = std::string(name) == "exif_6.png";
    const int width = turned ? expected.height : expected.width;
    const int height = turned ? expected.width : expected.height;
    const auto orientation = quick.read(file, width, height, image);
    EXPECT_EQ(orientation.has_value(), common) << name;
    if (!orientation) continue;
    EXPECT_EQ(*orientation, turned ? 6 : 1) << name;
    EXPECT_TRUE(turned || image.pixels == expected.pixels) << name;
  }
}

void append_bytes(png_structp png, png_bytep data, png_size_t size) {
  auto& out = *static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  const auto bytes = std::as_bytes(std::span(data, size));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// libpng's file of pixels of `channels` bytes, all rows with these filters.
std::vector<std::byte> write_png(std::vector<uint8_t>& pixels, int width, int height, int channels,
                                 int filters) {
  std::vector<std::byte> out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &out, append_bytes, nullptr);
  const int type = channels == 4   ? PNG_COLOR_TYPE_RGBA
                   : channels == 3 ? PNG_COLOR_TYPE_RGB
                                   : PNG_COLOR_TYPE_GRAY;
  png_set_IHDR(png, info, png_uint_32(width), png_uint_32(height), 8, type, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_set_filter(png, 0, filters);
  png_write_info(png, info);
  for (int y = 0; y < height; ++y)
    png_write_row(png, pixels.data() + size_t(y) * size_t(width) * size_t(channels));
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

TEST(QuickPng, UndoesEveryFilter) {
  QuickPng quick;
  Image image;
  RandomStream random(5, 0, 0, RandomUse::kSynthetic);
  for (const int channels : {1, 3, 4})
    for (const int filters : {PNG_FILTER_NONE, PNG_FILTER_SUB, PNG_FILTER_UP, PNG_FILTER_AVG,
                              PNG_FILTER_PAETH, PNG_ALL_FILTERS})
      for (const auto& [width, height] :
           {std::pair{1, 1}, {1, 9}, {2, 3}, {5, 5}, {16, 2}, {333, 40}}) {
        // Smooth in part, so that a predictor is exact, ties, or overflows.
        std::vector<uint8_t> pixels(size_t(width) * size_t(height) * size_t(channels));
        for (size_t i = 0; i < pixels.size(); ++i)
          pixels[i] = i % 7 < 4 ? uint8_t(i / 3) : uint8_t(random.next_u32());
        const auto file = write_png(pixels, width, height, channels, filters);
        ASSERT_EQ(quick.read(file, width, height, image), 1);
        for (size_t i = 0; i < image.pixels.size(); ++i) {
          const size_t from = i / 3 * size_t(channels) + (channels == 1 ? 0 : i % 3);
          ASSERT_EQ(image.pixels[i], pixels[from])
              << channels << " " << filters << " " << width << " x " << height << " " << i;
        }
      }
}

TEST(QuickPng, LeavesDamageToLibpng) {
  QuickPng quick;
  Image image, expected;
  for (const char* name : {"rgb.png", "rgba.png", "palette_8.png"}) {
    const auto intact = golden_input(name);
    Decoder().decode(intact, name, expected);
    const int width = expected.width, height = expected.height;
    size_t left = 0;
    for (size_t i = 8; i < intact.size(); i += 1 + i / 50) {
      auto file = intact;
      file[i] ^= std::byte{0x10};
      const auto read = quick.read(file, width, height, image);
      left += !read;
      EXPECT_TRUE(!read || image.pixels == expected.pixels) << name << " " << i;
      EXPECT_FALSE(quick.read(std::span(intact).first(i), width, height, image)) << name << i;
    }
    EXPECT_GT(left, 40u);
    // A header that lies about the size, or another picture's size.
    EXPECT_FALSE(quick.read(intact, width, height + 1, image));
    EXPECT_FALSE(quick.read(intact, width - 1, height, image));
  }
}

}  // namespace
}  // namespace saturate
