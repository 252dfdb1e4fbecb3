// Masks: their source, their files, and their transformations.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/export.h"
#include "data/inspect.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

std::string png(const std::vector<uint8_t>& numbers, int width, int height) {
  return testing::to_text(encode_png(numbers.data(), width, height, 1));
}

// Two images of 12 x 10 with masks of classes 0 to 2.
void write_masks(const std::string& root) {
  write_file(root + "/classes.txt", "sky\nground\r\nroad\n");
  for (const char* name : {"a", "b"}) {
    std::vector<uint8_t> numbers(120);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint8_t(i % 3);
    numbers[5] = kIgnoredClass;
    write_file(root + "/images/" + name + ".jpg", testing::noise_jpeg(12, 10, 1));
    write_file(root + "/masks/" + name + ".png", png(numbers, 12, 10));
  }
}

TEST(MaskSource, ReturnsEachImagesMask) {
  const TempDir dir;
  write_masks(dir.path());
  const auto data = open_dataset(Env::posix(), "masks:" + dir.path());
  EXPECT_TRUE(data->has_masks());
  EXPECT_EQ(data->classes(), (std::vector<std::string>{"sky", "ground", "road"}));
  ASSERT_EQ(data->size(), 2u);
  Sample sample;
  data->read(1, sample);
  EXPECT_TRUE(sample.name.ends_with("/images/b.jpg"));
  ClassMap mask;
  decode_mask(sample, 12, 10, 3, mask);
  EXPECT_EQ(mask.classes[4], 1);
  EXPECT_EQ(mask.classes[5], kIgnoredClass);
  EXPECT_EQ(open_dataset(Env::posix(), "masks:" + dir.path() + ",classes=21")->classes().size(),
            21u);
}

// The problem and the place.
void expect_error(const std::function<void()>& body, const std::vector<std::string>& parts) {
  const std::string text = error_of(body).what();
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(MaskSource, MissingFilesAreNamed) {
  const TempDir dir;
  const auto open = [&] { open_dataset(Env::posix(), "masks:" + dir.path()); };
  expect_error(open, {"no folder images/", dir.path()});
  write_masks(dir.path());
  write_file(dir / "images/a.png", "");
  expect_error(open, {"images a.jpg and a.png have the same mask", "/masks/a.png"});
  std::filesystem::remove(dir / "images/a.png");
  std::filesystem::remove(dir / "masks/b.png");
  expect_error(open, {"/images/b.jpg has no mask", "/masks/b.png"});
  write_file(dir / "classes.txt", "sky\n");
  expect_error(open, {"names 1 classes", "classes.txt"});
  std::filesystem::remove(dir / "classes.txt");
  expect_error(open, {"the classes are not specified", "classes=N"});
}

// Reads all batches, as training does.
void load(const Dataset& data, OnError on_error = OnError::kFail) {
  LoaderOptions options;
  options.batch = 2;
  options.masks = true;
  options.on_error = on_error;
  AugmentOptions augment;
  augment.size = 8;
  Loader loader(data, options, augment);
  loader.start_epoch(0);
  for (Batch batch; loader.next(batch);) EXPECT_NE(batch.masks, nullptr);
}

TEST(Masks, OfAnotherSizeThanTheirImageAreRefusedNamingBoth) {
  const TempDir dir;
  write_masks(dir.path());
  write_file(dir / "masks/b.png", png(std::vector<uint8_t>(132), 12, 11));
  const auto data = open_dataset(Env::posix(), "masks:" + dir.path());
  expect_error([&] { load(*data); }, {"/masks/b.png", "/images/b.jpg", "12 x 11", "12 x 10"});
  load(*data, OnError::kSkip);
  const auto report = inspect_dataset(*data, InspectDepth::kPixels, 2);
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_NE(report.broken[0].reason.find("12 x 11"), std::string::npos);
}

TEST(Masks, WithUnknownClassesAreRefused) {
  const TempDir dir;
  write_masks(dir.path());
  std::vector<uint8_t> numbers(120);
  numbers[27] = 3;
  write_file(dir / "masks/a.png", png(numbers, 12, 10));
  const auto data = open_dataset(Env::posix(), "masks:" + dir.path());
  expect_error([&] { load(*data); }, {"class 3 at x 3, y 2", "classes 0 to 2", "/masks/a.png"});
}

TEST(Masks, ThatAreNotIndexedOrGreyPngAreRefused) {
  const TempDir dir;
  write_masks(dir.path());
  const auto data = open_dataset(Env::posix(), "masks:" + dir.path());
  const auto with = [&](const std::string& bytes, const std::string& problem) {
    write_file(dir / "masks/a.png", bytes);
    expect_error([&] { load(*data); }, {problem, "/masks/a.png"});
  };
  const std::string good = png(std::vector<uint8_t>(120), 12, 10);
  with("", "not a PNG");
  with(testing::noise_jpeg(12, 10, 1), "not a PNG");
  with(good.substr(0, good.size() - 20), "truncated");
  with(testing::to_text(encode_png(testing::noise_image(12, 10, 1).pixels.data(), 12, 10, 3)),
       "does not have one number");
}

// Pillow's output for Pillow's files (tests/oracles/segmentation_goldens.py).
TEST(Masks, AreReadAsPillowDoes) {
  const std::string folder = testing::source_path("tests/goldens/segmentation/");
  std::ifstream file(folder + "masks.json");
  const auto golden = nlohmann::json::parse(file);
  EXPECT_EQ(golden.size(), 5u);
  ClassMap mask;
  const auto decode = [&](const std::string& name) {
    const std::string path = folder + "masks/" + name + ".png";
    decode_mask_png(read_file(Env::posix(), path), path, 9, 5, "image", mask);
  };
  for (const auto& [name, numbers] : golden.items()) {
    decode(name);
    ASSERT_EQ(mask.classes.size(), numbers.size()) << name;
    for (size_t i = 0; i < numbers.size(); ++i)
      EXPECT_EQ(mask.classes[i], numbers[i].get<int>()) << name << i;
  }
  for (const char* name : {"colours", "sixteen_bits"}) EXPECT_THROW(decode(name), Error) << name;
}

// Images that show their own masks: the red level of a pixel is its class times 40.
class TellingDataset : public Dataset {
 public:
  size_t size() const override { return 30; }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return true; }
  void read(size_t index, Sample& out) const override {
    out.name = "telling:" + std::to_string(index);
    out.encoding = SampleEncoding::kRaw;
    out.width = out.height = kSide;
    out.channels = 3;
    out.mask = {{}, true, kSide, kSide, out.name};
    out.bytes.clear();
    RandomStream random(3, 0, index, RandomUse::kSynthetic);
    for (int i = 0; i < kSide * kSide; ++i) {
      const auto number = uint8_t(1 + random.below(5));  // not 0, which padding has
      out.mask.bytes.push_back(std::byte{number});
      out.bytes.insert(out.bytes.end(), {std::byte(number * 40), std::byte{0}, std::byte{0}});
    }
  }
  static constexpr int kSide = 16;

 private:
  std::vector<std::string> classes_{"0", "1", "2", "3", "4", "5"};
};

// Compares every pixel with its mask, and returns the number of pixels outside the image.
int64_t compare(const Dataset& data, const AugmentOptions& augment, bool finish) {
  LoaderOptions options;
  options.batch = 8;
  options.threads = 2;
  options.masks = true;
  options.type = PixelType::kUint8;
  if (!finish) options.output = BatchOutput::kUnfinished;
  Loader loader(data, options, augment);
  loader.start_epoch(0);
  int64_t outside = 0;
  const size_t area = size_t(augment.size.area());
  for (Batch batch; loader.next(batch);)
    for (size_t i = 0; i < batch.count() * area; ++i) {
      const auto red = uint8_t(batch.pixels.get()[3 * i]);
      const auto number = uint8_t(batch.masks.get()[i]);
      EXPECT_EQ(number, red == 0 ? kIgnoredClass : red / 40) << i;
      outside += red == 0;
      if (::testing::Test::HasFailure()) return outside;
    }
  return outside;
}

TEST(Masks, FollowTheirImagesThroughShiftsAndFlips) {
  const TellingDataset data;
  AugmentOptions augment;
  augment.size = TellingDataset::kSide;
  augment.crop = CropKind::kPad;
  augment.padding = 3;
  augment.flip = 0.5;
  EXPECT_GT(compare(data, augment, true), 1000);
  EXPECT_GT(compare(data, augment, false), 1000);
  augment.pad_mode = PadMode::kReflect;
  EXPECT_EQ(compare(data, augment, true), 0);
}

// A rotation by right angles moves whole pixels and blends nothing.
TEST(Masks, FollowTheirImagesThroughTheAffineEffect) {
  const TellingDataset data;
  AugmentOptions augment;
  augment.size = TellingDataset::kSide;
  augment.translate = 0.3;
  EXPECT_GT(compare(data, augment, true), 1000);
}

TEST(Masks, AreNotChangedByColourBlurAndErasing) {
  const TellingDataset data;
  const auto masks = [&](const AugmentOptions& augment) {
    LoaderOptions options;
    options.batch = 30;
    options.masks = true;
    Loader loader(data, options, augment);
    loader.start_epoch(0);
    Batch batch;
    loader.next(batch);
    return testing::hash_bytes({batch.masks.get(), batch.count() * 256});
  };
  AugmentOptions augment;
  augment.size = TellingDataset::kSide;
  const uint64_t plain = masks(augment);
  augment.brightness = augment.contrast = augment.saturation = 0.5;
  augment.hue = 0.3;
  augment.grey = augment.blur = augment.erase = 1;
  EXPECT_EQ(masks(augment), plain);
  augment.rotate = 30;
  EXPECT_NE(masks(augment), plain);
}

TEST(Masks, AreTheSameFromACache) {
  const AugmentOptions augment = [] {
    AugmentOptions set;
    set.size = 12;
    set.crop = CropKind::kRandomResized;
    set.rotate = 20;
    return set;
  }();
  const auto prints = [&](CacheMode mode, CacheForm form, int threads) {
    CacheOptions cache{mode, form, 1};
    const auto data =
        cache_dataset(open_dataset(Env::posix(), "synth:size=20,count=20,masks=true"), cache);
    LoaderOptions options;
    options.batch = 7;
    options.threads = threads;
    options.masks = true;
    Loader loader(*data, options, augment);
    std::vector<uint64_t> found;
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
      loader.start_epoch(epoch);
      for (Batch batch; loader.next(batch);)
        found.push_back(testing::hash_bytes({batch.masks.get(), batch.count() * 144}));
    }
    return found;
  };
  const auto expected = prints(CacheMode::kNone, CacheForm::kEncoded, 1);
  EXPECT_EQ(expected.size(), 6u);
  EXPECT_EQ(prints(CacheMode::kRam, CacheForm::kEncoded, 2), expected);
  EXPECT_EQ(prints(CacheMode::kRam, CacheForm::kDecoded, 2), expected);
}

TEST(Masks, SynthesizedOnesAreTheSameFromAFolder) {
  const TempDir dir;
  const auto drawn = open_dataset(Env::posix(), "synth:size=16,count=12,classes=3,masks=true");
  EXPECT_EQ(drawn->classes(),
            (std::vector<std::string>{"background", "checker", "crescent", "cross"}));
  write_dataset(Env::posix(), *drawn, dir / "set", 2);
  const auto kept = open_dataset(Env::posix(), "masks:" + (dir / "set"));
  ASSERT_EQ(kept->size(), 12u);
  EXPECT_EQ(kept->classes(), drawn->classes());
  for (size_t i = 0; i < 12; ++i) {
    Sample a, b;
    drawn->read(i, a);
    kept->read(i, b);
    EXPECT_EQ(a.bytes, b.bytes);
    ClassMap of_a, of_b;
    decode_mask(a, 16, 16, 4, of_a);
    decode_mask(b, 16, 16, 4, of_b);
    EXPECT_EQ(of_a.classes, of_b.classes);
    EXPECT_NE(std::ranges::count(of_a.classes, uint8_t(1 + i % 3)), 0) << i;
  }
  const auto report = inspect_dataset(*kept, InspectDepth::kPixels, 2);
  EXPECT_EQ(report.class_samples, (std::vector<size_t>{12, 4, 4, 4}));
  EXPECT_EQ(report.class_pixels[0] + report.class_pixels[1] + report.class_pixels[2] +
                report.class_pixels[3],
            12u * 256);
}

TEST(Masks, SourcesAndFormatsWithoutMasksAreRefused) {
  const TempDir dir;
  const auto data = open_dataset(Env::posix(), "synth:size=16,count=4,masks=true");
  PackOptions pack;
  pack.out = "shard:" + (dir / "a.shard");
  expect_error([&] { pack_dataset(Env::posix(), *data, pack); }, {"masks", "a.shard"});
  expect_error([&] { write_dataset(Env::posix(), *data, dir / "a.tar", 1); }, {"masks", "a.tar"});
  DataOptions options;
  options.stage.mode = StageMode::kTmpfs;
  options.stage.folder = dir.path();
  expect_error([&] { open_input(Env::posix(), "synth:masks=true", options); },
               {"masks", "data.stage"});
  LoaderOptions loader;
  loader.masks = true;
  AugmentOptions augment;
  augment.size = 8;
  expect_error([&] { Loader(*open_dataset(Env::posix(), "synth:count=4"), loader, augment); },
               {"the source has no masks"});
}

}  // namespace
}  // namespace saturate
