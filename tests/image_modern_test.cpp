// WebP, AVIF and HEIC files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "data/export.h"
#include "data/inspect.h"
#include "image/codec.h"
#include "tests/data_testing.h"
#include "tests/image_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

std::string modern(const std::string& name) {
  return testing::source_path("tests/goldens/image/modern/") + name;
}

std::vector<std::byte> modern_file(const std::string& name) {
  return read_file(Env::posix(), modern(name));
}

// A build may lack either library.
bool can_read(const std::string& name) {
  try {
    Decoder().probe(modern_file(name), name);
    return true;
  } catch (const Error& error) {
    if (error.reason().find("was built without") == std::string::npos) throw;
    return false;
  }
}

#define SKIP_WITHOUT(name) \
  if (!can_read(name)) GTEST_SKIP() << "this build has no library for " << name

// Every file of an ending whose pixels are beside it; `most`: largest difference of a value.
void compare_with_png(const std::string& ending, size_t expected, int most) {
  Decoder decoder;
  Image image, upright;
  size_t compared = 0;
  for (const FileInfo& info : Env::posix().list(modern(""))) {
    if (!info.name.ends_with(ending) || !Env::posix().exists(modern(info.name + ".png"))) continue;
    decoder.decode(modern_file(info.name + ".png"), info.name, upright);
    decoder.decode(modern_file(info.name), info.name, image);
    const ImageInfo probed = decoder.probe(modern_file(info.name), info.name);
    ASSERT_EQ(image.width, upright.width) << info.name;
    ASSERT_EQ(image.height, upright.height) << info.name;
    EXPECT_EQ(probed.width, upright.width) << info.name;
    EXPECT_EQ(probed.height, upright.height) << info.name;
    int largest = 0;
    for (size_t i = 0; i < image.pixels.size(); ++i)
      largest = std::max(largest, std::abs(int(image.pixels[i]) - int(upright.pixels[i])));
    EXPECT_LE(largest, most) << info.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected);
}

TEST(Modern, WebpEqualsPillow) {
  SKIP_WITHOUT("lossy.webp");
  compare_with_png(".webp", 7, 0);
}

// Pillow's libavif is a later version, which rounds colours differently.
TEST(Modern, AvifEqualsPillowWithinRounding) {
  SKIP_WITHOUT("lossy.avif");
  compare_with_png(".avif", 11, 2);
}

TEST(Modern, ProbeReturnsFormatAndComponents) {
  SKIP_WITHOUT("lossy.webp");
  SKIP_WITHOUT("lossy.avif");
  const auto info = [](const std::string& name) {
    return Decoder().probe(modern_file(name), name);
  };
  EXPECT_EQ(info("lossy.webp").format, ImageFormat::kWebp);
  EXPECT_EQ(info("lossy.webp").components, 3);
  EXPECT_EQ(info("alpha.webp").components, 4);
  EXPECT_EQ(info("lossy.avif").format, ImageFormat::kAvif);
  EXPECT_EQ(info("grey.avif").components, 1);
  EXPECT_EQ(info("alpha.avif").components, 4);
}

TEST(Modern, TruncatedFilesAreErrors) {
  for (const char* name : {"lossy.webp", "lossless.webp", "alpha.webp", "lossy.avif"}) {
    if (!can_read(name)) continue;
    const auto whole = modern_file(name);
    Image image;
    // The last bytes of a WebP are padding.
    for (size_t size = 0; size + 16 < whole.size(); size += 1 + size / 40) {
      const Error error =
          error_of([&] { Decoder().decode(std::span(whole).first(size), "folder/x", image); });
      EXPECT_EQ(error.kind(), ErrorKind::kData) << name << " " << size;
      EXPECT_EQ(error.where(), "folder/x");
    }
  }
}

TEST(Modern, ManyPixelsAreRefusedBeforeTheyAreDecoded) {
  for (const char* name : {"lossy.webp", "lossy.avif"}) {
    if (!can_read(name)) continue;
    Image image;
    const Error error = error_of([&] { Decoder(1000).decode(modern_file(name), name, image); });
    EXPECT_NE(error.reason().find("over the limit"), std::string::npos) << error.reason();
    EXPECT_TRUE(image.pixels.empty());
  }
}

TEST(Modern, AnimationsAreErrors) {
  SKIP_WITHOUT("lossy.webp");
  const Error error = error_of([] { Decoder().probe(modern_file("animated.webp"), "a/b.webp"); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.reason().find("animated"), std::string::npos);
}

std::string heic(const std::string& brand) {
  return std::string(
             "\0\0\0\x18"
             "ftyp",
             8) +
         brand + std::string(4, '\0') + "mif1heic" + std::string(64, '\1');
}

TEST(Modern, HeicIsRefusedWithARemedy) {
  for (const char* brand : {"heic", "mif1", "hevc"}) {
    const std::string file = heic(brand);
    Image image;
    const Error error =
        error_of([&] { Decoder().decode(std::as_bytes(std::span(file)), "a/IMG_1.HEIC", image); });
    EXPECT_EQ(error.reason(), "HEIC is not supported");
    EXPECT_NE(error.remedy().find("Convert"), std::string::npos);
  }
  // It is a sample of the folder, so that nobody trains without noticing.
  const TempDir dir;
  write_file(dir / "a/IMG_1.HEIC", heic("heic"));
  const auto data = open_dataset(Env::posix(), dir.path());
  const auto report = inspect_dataset(*data, InspectDepth::kPixels, 1, {}, SIZE_MAX);
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_NE(report.broken[0].reason.find("HEIC"), std::string::npos);
}

TEST(Modern, ArePackedAsTheyAre) {
  SKIP_WITHOUT("lossy.webp");
  SKIP_WITHOUT("lossy.avif");
  const TempDir dir;
  for (const char* name : {"lossy.webp", "turned_6.webp", "lossy.avif", "turned_5.avif"})
    write_file(dir / "set/a/" + name, read_text(modern(name)));
  Env& env = Env::posix();
  const auto data = open_dataset(env, "folder:" + (dir / "set"));
  const auto report = inspect_dataset(*data, InspectDepth::kPixels, 1, {}, SIZE_MAX);
  EXPECT_EQ(report.webp, 2u);
  EXPECT_EQ(report.avif, 2u);
  EXPECT_TRUE(report.broken.empty());
  for (const std::string out : {"shard:", "lmdb:", "tar:"}) {
    PackOptions options;
    options.out = out + (dir / out.substr(0, out.size() - 1));
    options.segment = 8;
    EXPECT_EQ(pack_dataset(env, *data, options).copied, 4u) << out;
    const auto packed = open_dataset(env, options.out);
    Sample before, after;
    for (size_t i = 0; i < data->size(); ++i) {
      data->read(i, before);
      packed->read(i, after);
      EXPECT_EQ(after.bytes, before.bytes) << out << i;
    }
    if (out == "tar:") {
      EXPECT_TRUE(after.name.ends_with(".webp")) << after.name;
    }
  }
}

TEST(Modern, LoadersDecodeThemInEitherMode) {
  SKIP_WITHOUT("lossy.webp");
  SKIP_WITHOUT("lossy.avif");
  std::vector<std::string> files;
  for (const char* name : {"lossy.webp", "lossy.avif", "turned_6.webp"})
    files.push_back(read_text(modern(name)));
  const testing::MemoryDataset data(files);
  AugmentOptions augment;
  augment.size = 32;
  augment.crop = CropKind::kRandomResized;
  uint64_t hashes[2];
  for (const DecodeMode mode : {DecodeMode::kExact, DecodeMode::kFast}) {
    LoaderOptions options;
    options.batch = 3;
    options.type = PixelType::kUint8;
    options.decode = mode;
    Loader loader(data, options, augment);
    loader.start_epoch(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    hashes[int(mode)] = testing::hash_bytes({batch.pixels.get(), size_t{3} * 32 * 32 * 3});
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace saturate
