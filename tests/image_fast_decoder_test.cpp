// The fast path compared with the exact one: a full decode, then Resizer on the same crop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "image/fast_decoder.h"
#include "saturate/data/error.h"
#include "tests/fast_testing.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

using testing::all_fast_kinds;
using testing::compare;
using testing::crops;
using testing::encode_as;
using testing::exact_pixels;
using testing::fast_pixels;
using testing::golden_input;
using testing::JpegKind;
using testing::kFastKinds;
using testing::kLeastPsnr;
using testing::kMedianPsnr;
using testing::kWorstShift;
using testing::test_picture;

constexpr double kMeanShift = 0.1;  // levels; of one channel of all images

TEST(FastDecoder, IsNearExactForEverySamplingSizeAndCrop) {
  testing::expect_near_exact(kFastKinds, {{97, 61}, {64, 48}, {33, 130}, {17, 16}});
}

TEST(FastDecoder, IsNearExactForSmallImages) {
  FastDecoder decoder;
  for (const JpegKind& kind : all_fast_kinds()) {
    for (const auto& [width, height] :
         {std::pair{15, 64}, {64, 15}, {16, 7}, {9, 8}, {5, 3}, {4, 9}, {3, 2}, {1, 1}}) {
      const auto bytes = encode_as(test_picture(width, height), kind);
      for (const Box& crop : width > 1 ? crops(width, height) : std::vector<Box>{{0, 0, 1, 1}}) {
        const SampleTransform transform{crop, 0, 0, crop.y % 2 == 1};
        const auto result =
            compare(fast_pixels(decoder, bytes, transform, 20), exact_pixels(bytes, transform, 20));
        EXPECT_GE(result.psnr, kLeastPsnr)
            << kind.name << " " << width << "x" << height << " crop " << crop.x << "," << crop.y
            << " " << crop.width << "x" << crop.height;
      }
    }
  }
}

TEST(FastDecoder, EqualsExactWithoutResizing) {
  FastDecoder decoder;
  for (const char* const name : {"444", "grey", "progressive_444", "rgb"}) {
    const auto kind =
        std::find_if(std::begin(kFastKinds), std::end(kFastKinds),
                     [&](const JpegKind& k) { return std::string_view(k.name) == name; });
    const auto bytes = encode_as(test_picture(97, 61), *kind);
    for (const bool flip : {false, true}) {
      const SampleTransform transform{{13, 5, 50, 50}, 0, 0, flip};
      EXPECT_EQ(fast_pixels(decoder, bytes, transform, 50), exact_pixels(bytes, transform, 50))
          << name;
    }
  }
}

// The same coefficients in five encodings: baseline scans of all components are decoded here
// (image/baseline_scan.h), others and progressive ones by libjpeg.
TEST(FastDecoder, TheEncodingOfCoefficientsDoesNotMatter) {
  FastDecoder decoder;
  Image noise = test_picture(211, 163);
  RandomStream random(5, 0, 0, RandomUse::kSynthetic);
  for (uint8_t& value : noise.pixels) value = uint8_t(value + random.below(120));
  for (const Image& picture : {test_picture(211, 163), noise}) {
    for (const int quality : {3, 75, 100}) {
      for (JpegKind kind : {kFastKinds[0], kFastKinds[1], kFastKinds[2], kFastKinds[3]}) {
        for (const int size : {8, 11, 30, 97}) {  // at 1/8, 1/4, 1/2 and 1 of the image's size
          const SampleTransform transform{{33, 17, 160, 133}, 0, 0, true};
          const auto baseline =
              fast_pixels(decoder, encode_as(picture, kind, quality), transform, size);
          JpegKind own = kind, restarts = kind, progressive = kind, scans = kind;
          own.own_tables = progressive.progressive = scans.own_scans = true;
          restarts.restart_rows = 1;
          for (const JpegKind& other : {own, restarts, progressive, scans})
            EXPECT_EQ(fast_pixels(decoder, encode_as(picture, other, quality), transform, size),
                      baseline)
                << kind.name << " " << quality << " " << size;
        }
      }
    }
  }
}

// Twice the sampling factors, and so larger MCUs, of the same blocks.
TEST(FastDecoder, MultiplesOfSamplingFactorsDoNotMatter) {
  FastDecoder decoder;
  const Image picture = test_picture(211, 163);
  for (const int across : {1, 2}) {
    JpegKind larger{"", JCS_YCbCr, 2 * across};
    larger.chroma_across = 2;
    const auto usual = encode_as(picture, {"", JCS_YCbCr, across}),
               other = encode_as(picture, larger);
    ASSERT_NE(usual, other);
    for (const int size : {11, 40, 97}) {
      const SampleTransform transform{{33, 17, 160, 133}, 0, 0, true};
      EXPECT_EQ(fast_pixels(decoder, other, transform, size),
                fast_pixels(decoder, usual, transform, size))
          << across << " " << size;
    }
  }
}

// The wrong tables come first, and are replaced.
TEST(FastDecoder, TheLastTablesBeforeTheScanAreUsed) {
  FastDecoder decoder;
  const auto file = encode_as(test_picture(211, 163), kFastKinds[2]);
  const SampleTransform transform{{33, 17, 160, 133}, 0, 0, true};
  for (const auto& [marker, body] : testing::other_tables())
    EXPECT_EQ(fast_pixels(decoder, testing::with_marker(file, marker, body), transform, 40),
              fast_pixels(decoder, file, transform, 40))
        << marker;
}

TEST(FastDecoder, AFlipMirrorsThePixels) {
  FastDecoder decoder;
  const auto bytes = encode_as(test_picture(97, 61), kFastKinds[2]);
  SampleTransform transform{{11, 3, 80, 50}, 0, 0, false};
  const auto straight = fast_pixels(decoder, bytes, transform, 40);
  transform.flip = true;
  const auto mirrored = fast_pixels(decoder, bytes, transform, 40);
  for (size_t y = 0; y < 40; ++y)
    for (size_t x = 0; x < 40; ++x)
      for (size_t c = 0; c < 3; ++c)
        ASSERT_EQ(mirrored[(y * 40 + x) * 3 + c], straight[(y * 40 + 39 - x) * 3 + c]);
}

// Crops large enough for each reduced transform.
TEST(FastDecoder, IsNearExactWithReducedSizeDecoding) {
  FastDecoder decoder;
  for (const JpegKind& kind : kFastKinds) {
    const auto bytes = encode_as(test_picture(700, 523), kind);
    for (const Box& crop : {Box{0, 0, 700, 523}, Box{99, 41, 333, 401}, Box{400, 223, 300, 300}}) {
      for (const int size : {9, 18, 36, 72}) {
        const SampleTransform transform{crop, 0, 0, true};
        const auto result = compare(fast_pixels(decoder, bytes, transform, size),
                                    exact_pixels(bytes, transform, size));
        EXPECT_GE(result.psnr, kLeastPsnr) << kind.name << " " << crop.width << " to " << size;
      }
    }
  }
}

TEST(FastDecoder, EveryInstructionSetReturnsTheSameImage) {
  const auto bytes = encode_as(test_picture(300, 200), kFastKinds[2]);
  const SampleTransform transform{{10, 20, 250, 171}, 0, 0, true};
  FastDecoder plain(1 << 20, plain_fast_kernels());
  const auto expected = fast_pixels(plain, bytes, transform, 112);
  for (const FastKernels& kernels : all_fast_kernels()) {
    FastDecoder decoder(1 << 20, kernels);
    EXPECT_EQ(fast_pixels(decoder, bytes, transform, 112), expected) << kernels.name;
  }
}

TEST(FastDecoder, RareKindsUseTheExactPath) {
  FastDecoder decoder(100 * 100);
  EXPECT_FALSE(decoder.open(golden_input("rgb.png"), "png"));
  const Image picture = test_picture(64, 64);
  for (const JpegKind& kind :
       {JpegKind{.name = "ycck_422", .space = JCS_YCCK, .across = 2, .last_as_first = true},
        JpegKind{"arithmetic", JCS_YCbCr, 1, 1, false, 0, true}})
    EXPECT_FALSE(decoder.open(encode_as(picture, kind), kind.name)) << kind.name;
  EXPECT_FALSE(decoder.open(encode_as(test_picture(101, 100), kFastKinds[2]), "large"));
  EXPECT_TRUE(decoder.open(encode_as(picture, kFastKinds[2]), "420"));
}

// The reason why decoding fails; empty if it does not fail.
template <class Body>
std::string reason_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.reason();
  }
  return "";
}

// Why a crop cannot be decoded, in exact mode if it is left to that.
std::string reason_of_crop(FastDecoder& decoder, std::span<const std::byte> bytes,
                           const Box& crop) {
  return reason_of([&] {
    std::vector<std::byte> out(9 * 9 * 3);
    Image image;
    const bool read =
        decoder.open(bytes, "x") && decoder.read("x", {crop, 0, 0, false}, 9, out.data());
    if (!read) Decoder().decode(bytes, "x", image);
  });
}

std::string reason_of_exact(std::span<const std::byte> bytes) {
  Image image;
  return reason_of([&] { Decoder().decode(bytes, "x", image); });
}

TEST(FastDecoder, ATruncatedFileFailsLikeInExactModeForAnyCrop) {
  FastDecoder decoder;
  for (const JpegKind& kind : all_fast_kinds()) {
    const auto whole = encode_as(test_picture(97, 61), kind);
    for (size_t size = 3; size < whole.size(); size += 1 + size / 61) {
      const auto bytes = std::span(whole).first(size);
      const std::string expected = reason_of_exact(bytes);
      EXPECT_NE(expected, "") << kind.name << " " << size;
      for (const Box& crop : {Box{0, 0, 97, 61}, Box{0, 0, 20, 4}, Box{50, 40, 20, 21}})
        EXPECT_EQ(reason_of_crop(decoder, bytes, crop), expected) << kind.name << " " << size;
    }
  }
}

// Twelve bits, and the marker of a lossless frame.
TEST(FastDecoder, OtherPrecisionsAndProcessesFailLikeInExactMode) {
  FastDecoder decoder;
  for (const JpegKind& kind : {kFastKinds[0], kFastKinds[2], kFastKinds[3]}) {
    const auto intact = encode_as(test_picture(64, 48), kind);
    const std::byte head[] = {std::byte{0xff}, std::byte{0xc0}, std::byte{0}};
    const auto frame = std::ranges::search(intact, head).begin() - intact.begin();
    ASSERT_LT(size_t(frame) + 4, intact.size());
    auto twelve = intact, lossless = intact;
    ASSERT_EQ(std::exchange(twelve[size_t(frame) + 4], std::byte{12}), std::byte{8});
    lossless[size_t(frame) + 1] = std::byte{0xc3};
    for (const auto& bytes : {twelve, lossless}) {
      const std::string expected = reason_of_exact(bytes);
      EXPECT_NE(expected, "") << kind.name;
      EXPECT_EQ(reason_of_crop(decoder, bytes, {0, 0, 20, 4}), expected) << kind.name;
    }
    EXPECT_EQ(reason_of_crop(decoder, intact, {0, 0, 20, 4}), "") << kind.name;
  }
}

TEST(FastDecoder, DamagedBytesNeverCrashAndTheDecoderWorksAfterwards) {
  FastDecoder decoder(1 << 20);
  std::vector<std::byte> out(32 * 32 * 3);
  for (const JpegKind& kind : all_fast_kinds()) {
    const auto intact = encode_as(test_picture(97, 61), kind);
    for (size_t i = 0; i < intact.size(); i += 1 + i / 300) {
      auto bytes = intact;
      bytes[i] ^= std::byte{0x55};
      reason_of([&] {
        const auto info = decoder.open(bytes, "x");
        if (!info) return;
        const Box crop{0, 0, info->width, info->height};
        decoder.read("x", {crop, 0, 0, false}, 32, out.data());
      });
    }
    const SampleTransform transform{{3, 3, 60, 50}, 0, 0, false};
    EXPECT_GE(
        compare(fast_pixels(decoder, intact, transform, 32), exact_pixels(intact, transform, 32))
            .psnr,
        kLeastPsnr);
  }
}

// A fresh decoder's tables hold no codes either, and must not count as already built.
TEST(FastDecoder, AHuffmanTableWithoutCodesDecodesNothing) {
  auto bytes = encode_as(test_picture(32, 32), {"grey", JCS_GRAYSCALE});
  const uint8_t head[] = {0xff, 0xc4, 0x00, 0xb5, 0x10};  // of the table for AC coefficients
  const auto table =
      std::search(bytes.begin(), bytes.end(), std::begin(head), std::end(head),
                  [](std::byte a, uint8_t b) { return std::to_integer<uint8_t>(a) == b; });
  ASSERT_NE(table, bytes.end());
  table[3] = std::byte{2 + 1 + 16};
  std::fill_n(table + 5, 16, std::byte{0});
  bytes.erase(table + 5 + 16, table + 2 + 0xb5);

  alignas(FastDecoder) static std::byte memory[sizeof(FastDecoder)];
  std::memset(memory, 0x5a, sizeof memory);  // whatever was there before
  const std::unique_ptr<FastDecoder, void (*)(FastDecoder*)> decoder(
      new (memory) FastDecoder(), [](FastDecoder* made) { made->~FastDecoder(); });
  std::vector<std::byte> out(9 * 9 * 3);
  ASSERT_TRUE(decoder->open(bytes, "x").has_value());
  EXPECT_FALSE(decoder->read("x", {{0, 0, 32, 32}, 0, 0, false}, 9, out.data()));
}

// A baseline file with a scan of Y and none of Cb and Cr, for which libjpeg has no quantisation
// table.
TEST(FastDecoder, AComponentWithoutAScanIsLeftToExactMode) {
  std::vector<uint8_t> file = {0xff, 0xd8, 0xff, 0xdb, 0, 67, 0};
  const auto add = [&file](const std::vector<uint8_t>& more) {
    file.insert(file.end(), more.begin(), more.end());
  };
  add(std::vector<uint8_t>(64, 1));
  add({0xff, 0xc0, 0, 17, 8, 0, 16, 0, 16, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0});
  for (const uint8_t table : {0x00, 0x10}) {  // one code, for the value 0
    add({0xff, 0xc4, 0, 20, table, 1});
    add(std::vector<uint8_t>(16, 0));
  }
  add({0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0, 0xff, 0xd9});
  const auto bytes = std::as_bytes(std::span(file));
  FastDecoder decoder;
  std::vector<std::byte> out(9 * 9 * 3);
  EXPECT_FALSE(decoder.open(bytes, "x") &&
               decoder.read("x", {{0, 0, 16, 16}, 0, 0, false}, 9, out.data()));
}

// Sorted; empty if they are absent.
std::vector<std::string> photographs() {
  const std::string folder = testing::shared_path("data/imagenet-400");
  std::vector<std::string> files;
  if (!Env::posix().is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(FastDecoder, EqualsExactOnPhotographsWithoutResizing) {
  const auto files = photographs();
  if (files.empty()) GTEST_SKIP() << "no photographs at ../shared/data/imagenet-400";
  FastDecoder decoder;
  int equal = 0;
  for (const std::string& file : files) {
    const auto bytes = read_file(Env::posix(), file);
    const auto info = decoder.open(bytes, file);
    if (!info) continue;
    const int size = std::min({info->width, info->height, 200});
    const SampleTransform transform{
        {info->width - size, info->height - size, size, size}, 0, 0, false};
    equal += fast_pixels(decoder, bytes, transform, size) == exact_pixels(bytes, transform, size);
  }
  EXPECT_GE(equal, 300);  // the others' chroma is subsampled, and rounds differently
  RecordProperty("equal", equal);
}

TEST(FastDecoder, IsNearExactOnPhotographsOfAllOrientations) {
  const auto files = photographs();
  if (files.empty()) GTEST_SKIP() << "no photographs at ../shared/data/imagenet-400";
  AugmentOptions options;
  options.crop = CropKind::kRandomResized;
  FastDecoder decoder;
  std::map<int, std::vector<double>> psnr;
  double shift[3] = {}, worst_shift = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto bytes = testing::with_marker(read_file(Env::posix(), files[i]), 0xe1,
                                            testing::exif(1 + int(i) / 2 % 8));
    const auto info = decoder.open(bytes, files[i]);
    if (!info) continue;
    const int size = i % 2 == 0 ? 224 : 64;
    RandomStream random(1, 0, uint32_t(i), RandomUse::kAugment);
    const SampleTransform transform = draw_transform(options, random, info->width, info->height);
    const auto result =
        compare(fast_pixels(decoder, bytes, transform, size), exact_pixels(bytes, transform, size));
    EXPECT_GE(result.psnr, kLeastPsnr) << files[i];
    psnr[size].push_back(result.psnr);
    for (int c = 0; c < 3; ++c) {
      shift[c] += result.shift[c] / double(files.size());
      worst_shift = std::max(worst_shift, std::abs(result.shift[c]));
    }
  }
  EXPECT_GE(psnr[224].size() + psnr[64].size(), files.size() - 2);
  for (auto& [size, values] : psnr) {
    std::sort(values.begin(), values.end());
    EXPECT_GE(values[values.size() / 2], kMedianPsnr) << size;
    RecordProperty("median_psnr_" + std::to_string(size),
                   std::to_string(values[values.size() / 2]));
  }
  for (const double value : shift) EXPECT_LT(std::abs(value), kMeanShift);
  EXPECT_LT(worst_shift, kWorstShift);
}

}  // namespace
}  // namespace saturate
