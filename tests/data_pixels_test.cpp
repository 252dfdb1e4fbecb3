// idx: and cifar:, compared with torchvision (tests/oracles/format_goldens.py).
#include <gtest/gtest.h>

#include "data/export.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::format_golden;
using testing::gunzip;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

Error open_error(const std::string& uri) {
  return error_of([&] { open_dataset(env(), uri); });
}

std::string be32(uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

TEST(IdxSource, ReadsWhatTorchvisionReads) {
  const std::string folder = format_golden("");
  const std::string plain = folder + "train-images-idx3-ubyte";
  const std::string packed = folder + "t10k-images-idx3-ubyte.gz";
  for (const std::string& rest :
       {plain, plain + "," + folder + "train-labels-idx1-ubyte", folder, folder + ",split=train"}) {
    const auto dataset = open_dataset(env(), "idx:" + rest);
    EXPECT_EQ(dataset->classes().size(), 10u);
    std::string path = plain;
    if (rest.starts_with(folder + ",") || rest == folder)
      path = folder + "/train-images-idx3-ubyte";
    testing::expect_samples(*dataset, "idx", path + ":");
  }
  testing::expect_samples(*open_dataset(env(), "idx:" + packed), "idx", packed + ":");
  testing::expect_samples(*open_dataset(env(), "idx:" + folder + ",split=test"), "idx",
                          folder + "/t10k-images-idx3-ubyte.gz:");
}

TEST(IdxSource, GreyImagesGetThreeEqualChannels) {
  const auto dataset = open_dataset(env(), "idx:" + format_golden("train-images-idx3-ubyte"));
  Sample sample;
  Decoder decoder;
  Image image;
  dataset->read(2, sample);
  decode_sample(decoder, sample, image);
  ASSERT_EQ(image.width, 20);
  ASSERT_EQ(image.height, 28);
  for (size_t i = 0; i < sample.bytes.size(); ++i)
    for (size_t c = 0; c < 3; ++c) ASSERT_EQ(image.pixels[i * 3 + c], uint8_t(sample.bytes[i]));
}

TEST(IdxSource, ManyClassesKeepTheirOrder) {
  const TempDir dir;
  write_file(dir / "images", be32(0x803) + be32(3) + be32(1) + be32(1) + "abc");
  write_file(dir / "labels", be32(0x801) + be32(3) + std::string("\x02\x2e\x0a", 3));
  const auto dataset = open_dataset(env(), "idx:" + (dir / "images") + "," + (dir / "labels"));
  ASSERT_EQ(dataset->classes().size(), 47u);
  EXPECT_EQ(dataset->classes()[2], "02");
  EXPECT_TRUE(std::is_sorted(dataset->classes().begin(), dataset->classes().end()));
  Sample sample;
  dataset->read(1, sample);
  EXPECT_EQ(sample.label, 46);
}

class IdxErrors : public ::testing::Test {
 protected:
  // Opens these images with the golden's labels.
  Error images(const std::string& text) {
    write_file(dir / "images", text);
    return open_error("idx:" + (dir / "images") + "," + format_golden("train-labels-idx1-ubyte"));
  }
  void expect_reason(const std::string& text, const std::string& part) {
    const Error error = images(text);
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
    EXPECT_NE(error.where().find("images"), std::string::npos);
  }
  const std::string good = read_text(format_golden("train-images-idx3-ubyte"));
  TempDir dir;
};

TEST_F(IdxErrors, TruncatedAndForeignFiles) {
  expect_reason("", "truncated");
  expect_reason(good.substr(0, 9), "truncated");
  expect_reason(good.substr(0, good.size() - 1), "truncated");
  expect_reason(good + "x", "continues");
  expect_reason("GIF89a, and more", "wrong magic");
  expect_reason(be32(0xd03) + good.substr(4), "not unsigned bytes");
  expect_reason(be32(0x801) + good.substr(4), "1 dimensions where 3");
  expect_reason(be32(0x803) + be32(3) + be32(1) + be32(1) + "abc", "3 images, and 4 labels");
  const std::string packed = testing::gzip(good);
  for (size_t size = 3; size < packed.size(); size += 7)
    EXPECT_EQ(images(packed.substr(0, size)).kind(), ErrorKind::kData) << size;
  expect_reason(packed.substr(0, packed.size() - 5), "truncated");
  std::string flipped = packed;
  flipped[packed.size() - 6] = char(flipped[packed.size() - 6] ^ 1);
  expect_reason(flipped, "damaged");
}

// A header's sizes are compared with the file's size before memory is allocated.
TEST_F(IdxErrors, BombsAreRefusedBeforeDecompression) {
  const std::string claim = be32(0x803) + be32(4) + be32(60'000) + be32(60'000);
  const std::string zeros(100'000, '\0');
  for (const std::string& text : {claim + zeros, testing::gzip(claim + zeros)})
    expect_reason(text, "4 x 60000 x 60000");
  const std::string overflow = be32(0x803) + be32(UINT32_MAX) + be32(UINT32_MAX) + be32(UINT32_MAX);
  for (const std::string& text : {overflow + zeros, testing::gzip(overflow + zeros)})
    expect_reason(text, "truncated");
  expect_reason(be32(0x803) + be32(1u << 31) + be32(1u << 31) + be32(4) + zeros, "truncated");
  expect_reason(be32(0x803) + be32(4) + be32(0) + be32(28), "4 x 0 x 28");
}

TEST_F(IdxErrors, LabelsAreFoundByNameOrMustBeGiven) {
  write_file(dir / "pictures", good);
  EXPECT_NE(open_error("idx:" + (dir / "pictures")).remedy().find("idx:IMAGES,LABELS"),
            std::string::npos);
  write_file(dir / "set/a-images-idx3-ubyte", good);
  EXPECT_EQ(open_error("idx:" + (dir / "set/a-images-idx3-ubyte")).kind(), ErrorKind::kData);
  write_file(dir / "set/a-labels-idx1-ubyte.gz",
             gunzip(format_golden("t10k-labels-idx1-ubyte.gz")));
  EXPECT_EQ(open_dataset(env(), "idx:" + (dir / "set/a-images-idx3-ubyte"))->size(), 4u);
  write_file(dir / "set/b-images-idx3-ubyte", good);
  EXPECT_NE(open_error("idx:" + (dir / "set")).reason().find("several"), std::string::npos);
  EXPECT_EQ(open_error("idx:" + (dir / "set") + ",split=val").kind(), ErrorKind::kUsage);
  EXPECT_EQ(open_error("idx:").kind(), ErrorKind::kUsage);
  EXPECT_EQ(open_error("idx:a,b,c").kind(), ErrorKind::kUsage);
}

class CifarFiles : public ::testing::Test {
 protected:
  const std::string ten = gunzip(format_golden("cifar10.bin.gz"));
  const std::string hundred = gunzip(format_golden("cifar100.bin.gz"));
  TempDir dir;
};

TEST_F(CifarFiles, ReadWhatTorchvisionReads) {
  write_file(dir / "x.bin", ten);
  testing::expect_samples(*open_dataset(env(), "cifar:" + (dir / "x.bin")), "cifar10",
                          dir / "x.bin:");
  write_file(dir / "c/train.bin", hundred);
  const auto fine = open_dataset(env(), "cifar:" + (dir / "c"));
  ASSERT_EQ(fine->classes().size(), 100u);
  Sample sample, other;
  for (size_t i = 0; i < 3; ++i) {
    fine->read(i, sample);
    const auto expected = testing::expected_samples("cifar100")[i];
    EXPECT_EQ(std::to_string(sample.label), expected.class_name);
    EXPECT_EQ(testing::hash_bytes(sample.bytes), expected.hash);
    EXPECT_EQ(sample.channels, 3);
  }
  const auto coarse = open_dataset(env(), "cifar:" + (dir / "c") + ",labels=coarse");
  EXPECT_EQ(coarse->classes().size(), 20u);
  coarse->read(1, other);
  EXPECT_EQ(other.label, 19);
}

TEST_F(CifarFiles, FoldersHaveSplitsAndClassNames) {
  write_file(dir / "data_batch_1.bin", ten);
  write_file(dir / "data_batch_2.bin", ten);
  write_file(dir / "test_batch.bin", ten);
  // Unsorted, so that labels must follow their names.
  write_file(dir / "batches.meta.txt", "truck\nb\nfrog\nd\ne\nf\ng\nairplane\ni\nj\n\n");
  const auto train = open_dataset(env(), "cifar:" + dir.path());
  EXPECT_EQ(train->size(), 6u);
  EXPECT_EQ(open_dataset(env(), "cifar:" + dir.path() + ",split=test")->size(), 3u);
  EXPECT_EQ(train->classes().front(), "airplane");
  Sample sample;
  const char* names[] = {"airplane", "frog", "truck"};
  for (size_t i = 0; i < 6; ++i) {
    train->read(i, sample);
    EXPECT_EQ(train->classes()[size_t(sample.label)], names[i % 3]);
  }
  EXPECT_EQ(sample.name, dir / "data_batch_2.bin:2");
  // Packing keeps pixels and class names.
  PackOptions options;
  options.out = "shard:" + (dir / "c.shard");
  pack_dataset(env(), *train, options);
  testing::expect_equal(*train, *open_dataset(env(), options.out));

  write_file(dir / "data_batch_4.bin", ten);
  EXPECT_NE(open_error("cifar:" + dir.path()).where().find("data_batch_3.bin"), std::string::npos);
  write_file(dir / "batches.meta.txt", "only\ntwo\n");
  EXPECT_NE(open_error("cifar:" + (dir / "test_batch.bin")).reason().find("2 class names"),
            std::string::npos);
}

TEST_F(CifarFiles, DamageIsAnErrorThatNamesTheFile) {
  write_file(dir / "cut.bin", ten.substr(0, ten.size() - 1));
  write_file(dir / "void.bin", "");
  write_file(dir / "empty/readme", "");
  for (const char* name : {"cut.bin", "void.bin", "none.bin", "empty"}) {
    const Error error = open_error("cifar:" + (dir / name));
    EXPECT_EQ(error.kind(), ErrorKind::kData) << name;
    EXPECT_NE(error.where().find(name), std::string::npos);
  }
  std::string bad = ten;
  bad[3073] = 10;
  write_file(dir / "label.bin", bad);
  const auto dataset = open_dataset(env(), "cifar:" + (dir / "label.bin"));
  Sample sample;
  dataset->read(0, sample);
  const Error error = error_of([&] { dataset->read(1, sample); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), dir / "label.bin:1");
  for (const char* options : {",split=val", ",labels=some", ",labels=fine", ",split=test"})
    EXPECT_EQ(open_error("cifar:" + (dir / "label.bin") + options).kind(), ErrorKind::kUsage)
        << options;
}

}  // namespace
}  // namespace saturate
