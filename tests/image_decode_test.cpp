#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "image/codec.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"
#include "tests/image_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::crc;
using testing::decoded_input;
using testing::golden_input;
using testing::golden_lines;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The error of decoding.
Error decode_error(std::span<const std::byte> bytes, int64_t max_pixels = 1 << 20) {
  Image image;
  try {
    Decoder(max_pixels).decode(bytes, "folder/name.jpg", image);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.where(), "folder/name.jpg");
    EXPECT_FALSE(error.remedy().empty());
    return error;
  }
  ADD_FAILURE() << "decoded without an error";
  return Error(ErrorKind::kData, "", "", "", std::source_location::current());
}

// Checks every line "file width height crc32" of a golden with one reused decoder.
void compare_with_pillow(const std::string& list, const std::string& folder, size_t expected) {
  Decoder decoder;
  Image image;
  size_t compared = 0;
  for (auto& line : golden_lines(list)) {
    std::string file, checksum;
    int width = 0, height = 0;
    line >> file >> width >> height >> checksum;
    const auto bytes = read_file(Env::posix(), folder + "/" + file);
    ASSERT_NO_THROW(decoder.decode(bytes, file, image)) << file;
    EXPECT_EQ(image.width, width) << file;
    EXPECT_EQ(image.height, height) << file;
    EXPECT_EQ(crc(image.pixels), checksum) << file;
    const ImageInfo info = decoder.probe(bytes, file);
    EXPECT_EQ(info.width, width) << file;
    EXPECT_EQ(info.height, height) << file;
    EXPECT_EQ(info.format, file.ends_with(".png") ? ImageFormat::kPng : ImageFormat::kJpeg) << file;
    ++compared;
  }
  EXPECT_EQ(compared, expected);
}

TEST(Decoder, EveryKindOfFileEqualsPillow) {
  compare_with_pillow("decode.txt", testing::golden("inputs"), 57);
}

TEST(Decoder, AllPhotographsEqualPillow) {
  const std::string folder = testing::shared_path("data/imagenet-400");
  if (!Env::posix().is_directory(folder)) GTEST_SKIP() << "no photographs at " << folder;
  compare_with_pillow("photographs.txt", folder, 400);
}

TEST(Decoder, ProbeReturnsStoredComponents) {
  const auto components = [](const std::string& name) {
    return Decoder().probe(golden_input(name), name).components;
  };
  EXPECT_EQ(components("grey.jpg"), 1);
  EXPECT_EQ(components("rgb_420.jpg"), 3);
  EXPECT_EQ(components("ycck.jpg"), 4);
  EXPECT_EQ(components("grey_1.png"), 1);
  EXPECT_EQ(components("grey_alpha.png"), 2);
  EXPECT_EQ(components("palette_4.png"), 3);
  EXPECT_EQ(components("rgba.png"), 4);
}

TEST(Decoder, JpegsOfEightComponentsAreAnErrorForProbeToo) {
  std::string file("\xff\xd8\xff\xc0\0\x20\x08\0\x10\0\x10\x08", 12);
  for (char i = 1; i <= 8; ++i) file += std::string{i, '\x11', '\0'};
  file += std::string("\xff\xda\0\x08\x01\x01\0\0\x3f\0\0\xff\xd9", 13);
  const auto reason = [&](auto use) -> std::string {
    try {
      use();
    } catch (const Error& error) {
      return error.reason();
    }
    return "";
  };
  const auto bytes = bytes_of(file);
  Image image;
  for (const std::string& found : {reason([&] { Decoder().probe(bytes, "a.jpg"); }),
                                   reason([&] { Decoder().decode(bytes, "a.jpg", image); })})
    EXPECT_EQ(found, "JPEG has 8 components, not 1, 3 or 4");
}

TEST(Decoder, EmptyFileIsAnError) {
  EXPECT_EQ(decode_error({}).reason(), "file is empty");
}

TEST(Decoder, TextFileIsAnError) {
  EXPECT_EQ(decode_error(bytes_of("<!DOCTYPE html><title>404</title>")).reason(),
            "not a JPEG, PNG, WebP or AVIF image");
  EXPECT_EQ(decode_error(bytes_of("\xff")).reason(), "not a JPEG, PNG, WebP or AVIF image");
  EXPECT_EQ(decode_error(bytes_of("GIF89a")).reason(), "not a JPEG, PNG, WebP or AVIF image");
}

// Also if only the end marker is missing.
TEST(Decoder, TruncatedFileIsAnErrorAtEveryLength) {
  for (const std::string name :
       {"rgb_420.jpg", "progressive_420.jpg", "restart_rows.jpg", "cmyk.jpg", "exif_6.jpg",
        "rgb_interlaced.png", "palette_8.png", "grey_1.png"}) {
    const auto bytes = golden_input(name);
    for (size_t size = 8; size < bytes.size(); size += 1 + size / 97)
      EXPECT_FALSE(decode_error(std::span(bytes).first(size)).reason().empty()) << name << size;
    const Error error = decode_error(std::span(bytes).first(bytes.size() - 2));
    EXPECT_NE(error.reason().find("truncated"), std::string::npos) << name << error.what();
  }
}

TEST(Decoder, CorruptEntropyDataIsAnError) {
  auto bytes = golden_input("restart_rows.jpg");
  // A code of sixteen ones does not exist, and 0xff00 stands for 0xff.
  for (size_t i = bytes.size() / 2; i + 1 < bytes.size() / 2 + 16; i += 2) {
    bytes[i] = std::byte{0xff};
    bytes[i + 1] = std::byte{0};
  }
  EXPECT_NE(decode_error(bytes).reason().find("corrupt"), std::string::npos);
}

TEST(Decoder, WrongChecksumOfPngIsAnError) {
  auto bytes = golden_input("rgb.png");
  bytes[bytes.size() - 14] ^= std::byte{1};  // in the checksum of IDAT, before IEND's twelve bytes
  EXPECT_NE(decode_error(bytes).reason().find("corrupt"), std::string::npos);
}

// A flipped byte must not cause a crash, a hang or an access out of bounds; most cause an error,
// some other pixels.
TEST(Decoder, DamagedBytesNeverCrash) {
  Decoder decoder(1 << 20);
  Image image;
  for (const std::string name : {"progressive_420.jpg", "exif_6.jpg", "ycck.jpg", "xmp_8.jpg",
                                 "palette_transparent.png", "exif_6.png"}) {
    const auto intact = golden_input(name);
    for (size_t i = 0; i < intact.size(); i += 1 + i / 200) {
      auto bytes = intact;
      bytes[i] ^= std::byte{0x55};
      try {
        decoder.decode(bytes, name, image);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData);
      }
    }
  }
}

TEST(Decoder, WorksAfterAnError) {
  Decoder decoder;
  Image image;
  const auto bytes = golden_input("progressive_420.jpg");
  EXPECT_THROW(decoder.decode(std::span(bytes).first(1000), "x", image), Error);
  decoder.decode(bytes, "x", image);
  EXPECT_EQ(image.pixels, decoded_input("progressive_420.jpg").pixels);
}

TEST(Decoder, CanBeMoved) {
  Decoder first;
  Image image;
  first.decode(golden_input("rgb_420.jpg"), "x", image);
  Decoder second = std::move(first);
  second.decode(golden_input("grey.jpg"), "x", image);
  EXPECT_EQ(image.pixels, decoded_input("grey.jpg").pixels);
}

TEST(Decoder, PixelLimitIsCheckedBeforeAllocation) {
  const auto png = golden_input("rgb.png");
  EXPECT_NE(decode_error(png, 45 * 29 - 1).reason().find("45 x 29 pixels is over the limit"),
            std::string::npos);
  auto jpeg = golden_input("rgb_420.jpg");
  EXPECT_NE(decode_error(jpeg, 97 * 61 - 1).reason().find("over the limit"), std::string::npos);
  EXPECT_THROW(Decoder(45 * 29 - 1).probe(png, "a.png"), Error);
  EXPECT_EQ(Decoder(45 * 29).probe(png, "a.png").width, 45);
  // A JPEG that claims 65500 x 65500 pixels: 12 GB.
  const std::byte start_of_frame[] = {std::byte{0xff}, std::byte{0xc0}};
  const auto frame =
      std::search(jpeg.begin(), jpeg.end(), std::begin(start_of_frame), std::end(start_of_frame));
  for (const int offset : {5, 7}) {
    frame[offset] = std::byte{0xff};
    frame[offset + 1] = std::byte{0xdc};
  }
  Image image;
  EXPECT_THROW(Decoder().decode(jpeg, "x", image), Error);
  EXPECT_EQ(image.pixels.capacity(), 0u);
}

TEST(Exif, DamagedDirectoriesHaveNoOrientation) {
  using namespace std::string_view_literals;
  const auto orientation = [](std::string_view tiff) {
    return exif_orientation(std::as_bytes(std::span(tiff)));
  };
  EXPECT_EQ(orientation("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"sv), 6);
  EXPECT_EQ(orientation("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0"sv), 3);
  EXPECT_EQ(orientation(""sv), std::nullopt);
  EXPECT_EQ(orientation("II*\0\xff\xff\xff\xff"sv), std::nullopt);
  EXPECT_EQ(orientation("II*\0\x08\0\0\0\xff\xff"sv), std::nullopt);
  EXPECT_EQ(orientation("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"sv), std::nullopt);
  EXPECT_EQ(orientation("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x02\0\0\0\x06\0\0\0"sv), std::nullopt);
  EXPECT_EQ(orientation("IM*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"sv), std::nullopt);
}

TEST(EncodeJpeg, DecodesToNearlyTheSamePixels) {
  const Image image = decoded_input("rgb_444.jpg");
  for (const bool full_chroma : {true, false}) {
    Image back;
    const auto bytes = encode_jpeg(image, 97, full_chroma);
    Decoder().decode(bytes, "x", back);
    ASSERT_EQ(back.pixels.size(), image.pixels.size());
    double difference = 0;
    for (size_t i = 0; i < image.pixels.size(); ++i)
      difference += std::abs(int(image.pixels[i]) - int(back.pixels[i]));
    EXPECT_LT(difference / double(image.pixels.size()), full_chroma ? 1.0 : 3.0);
  }
  EXPECT_LT(encode_jpeg(image, 50, false).size(), encode_jpeg(image, 90, false).size());
}

TEST(EncodeJpeg, ImpossibleSizesAreErrors) {
  Image image;
  EXPECT_THROW(encode_jpeg(image, 90, true), Error);
  image.resize(65501, 1);
  EXPECT_THROW(encode_jpeg(image, 90, true), Error);
}

}  // namespace
}  // namespace saturate
