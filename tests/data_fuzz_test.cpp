// Every parser of the data and image modules on randomly mutated input. The promise for hostile
// input is an Error or data, never a crash, a hang or an access out of bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "data/bytes.h"
#include "data/export.h"
#include "data/lmdb_format.h"
#include "tests/array_testing.h"
#include "tests/format_testing.h"
#include "tests/fuzz/fuzz_image.h"
#include "tests/fuzz/fuzz_index.h"
#include "tests/fuzz/fuzz_parsers.h"
#include "tests/fuzz/fuzz_pickle.h"
#include "tests/fuzz/fuzz_source.h"
#include "tests/fuzz/fuzz_unpack.h"
#include "tests/fuzz/mutator.h"

namespace saturate {
namespace {

using testing::format_golden;
using testing::gunzip;
using testing::Mutator;

// Corrects the checksums, which would otherwise reject every mutation of the rest.
void fix_shard_checksums(std::string& text) {
  const auto crc_at = [&](size_t at, size_t begin, size_t size) {
    const uint32_t crc = checksum_of(std::as_bytes(std::span(text)).subspan(begin, size));
    std::memcpy(text.data() + at, &crc, sizeof crc);
  };
  if (text.size() < 128) return;
  const size_t trailer = text.size() - 64;
  uint64_t index, size = text.size();
  std::memcpy(text.data() + trailer + 8, &size, sizeof size);
  std::memcpy(&index, text.data() + trailer + 16, sizeof index);
  for (uint64_t at = index; at < trailer && trailer - at >= 40; at += 40) {  // of the samples
    uint64_t offset;
    uint32_t bytes;
    std::memcpy(&offset, text.data() + at, sizeof offset);
    std::memcpy(&bytes, text.data() + at + 8, sizeof bytes);
    if (offset < index && bytes <= index - offset) crc_at(at + 12, offset, bytes);
  }
  if (index < trailer) crc_at(trailer + 44, index, trailer - index);
  crc_at(trailer + 60, trailer, 60);
  crc_at(60, 0, 60);
}

void fix_tar_checksums(std::string& text) {
  for (size_t at = 0; at + 512 <= text.size(); at += 512) {
    if (text.compare(at + 257, 5, "ustar") != 0) continue;
    std::fill_n(text.begin() + ptrdiff_t(at + 148), 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(text[at + i]);
    char digits[8];
    snprintf(digits, sizeof digits, "%06o", sum);
    std::copy_n(digits, 7, text.begin() + ptrdiff_t(at + 148));
  }
}

struct Target {
  const char* scheme;
  std::vector<std::string> seeds;
  void (*fix_checksums)(std::string&);
  int rounds;
};

void fuzz(const Target& target) {
  Mutator mutator(std::hash<std::string>()(target.scheme));
  size_t read = 0, sound = 0;
  for (const std::string& seed : target.seeds)
    sound += testing::fuzz_source(target.scheme, std::as_bytes(std::span(seed)));
  for (int round = 0; round < target.rounds; ++round) {
    std::string text = mutator.mutate(target.seeds[size_t(round) % target.seeds.size()]);
    if (target.fix_checksums && mutator.coin()) target.fix_checksums(text);
    ASSERT_NO_THROW(read += testing::fuzz_source(target.scheme, std::as_bytes(std::span(text))))
        << target.scheme << " round " << round;
  }
  EXPECT_GT(sound, 0u) << "the unmodified inputs cannot be read";
  EXPECT_GT(read, 0u) << "every mutation was refused: this tests little";
}

std::string shard_of_segments() {
  const testing::TempDir dir;
  testing::write_file(dir / "set/a/0.jpg", testing::noise_jpeg(40, 20, 1));
  testing::write_file(dir / "set/a/1.jpg", testing::noise_jpeg(70, 16, 2));
  PackOptions options;
  options.out = "shard:" + (dir / "x.shard");
  options.segment = 2;
  Env& env = Env::posix();
  EXPECT_EQ(pack_dataset(env, *open_dataset(env, "folder:" + (dir / "set")), options).segmented,
            2u);
  return testing::read_text(dir / "x.shard");
}

TEST(Fuzz, Shard) {
  fuzz({"shard",
        {gunzip(format_golden("python.shard.gz")), gunzip(format_golden("python-v1.shard.gz")),
         gunzip(format_golden("tensors.shard.gz")), shard_of_segments()},
        fix_shard_checksums,
        8000});
}

TEST(Fuzz, Tar) {
  const auto tar = [](const char* name) {
    return testing::read_text(testing::source_path(std::string("tests/goldens/tar/") + name));
  };
  fuzz({"tar",
        {tar("gnu.tar"), tar("pax.tar"), tar("base256.tar"),
         gunzip(format_golden("wds-numbers.tar.gz")), gunzip(format_golden("wds-names.tar.gz"))},
        fix_tar_checksums,
        4000});
}

TEST(Fuzz, Arrays) {
  using testing::npy;
  fuzz({"npy",
        {npy("<f4", "3, 2", std::string(24, 'x')), npy(">i2", "2, 3", std::string(12, 'x'), true),
         npy("|u1", "6,", "abcdef")},
        nullptr,
        6000});
  fuzz({"npz", {testing::small_npz(false), testing::small_npz(true)}, nullptr, 6000});
  fuzz({"safetensors", {testing::small_safetensors()}, nullptr, 3000});
}

TEST(Fuzz, Csv) {
  fuzz({"csv",
        {"a,b,c\n1,x,3\n2,\"y,\"\"\nz\",4\n,x,5\n", "1;2\r\n3;4\r\n", "k\tv\na\tno\nb\tyes\n"},
        nullptr,
        6000});
}

TEST(Fuzz, Tokens) {
  // With the default context, 1,024 tokens.
  fuzz({"tokens",
        {std::string(4200, 'x'), testing::llmc_tokens(std::vector<uint16_t>(2100, 7), 2100)},
        nullptr,
        300});
}

TEST(Fuzz, Cifar) {
  fuzz({"cifar",
        {gunzip(format_golden("cifar10.bin.gz")), gunzip(format_golden("cifar100.bin.gz"))},
        nullptr,
        1000});
}

TEST(Fuzz, Image) {
  Mutator mutator(2);
  size_t whole = 0, sound = 0;
  std::vector<std::filesystem::path> seeds;
  for (const char* folder : {"inputs", "modern", "points"})
    for (const auto& entry :
         std::filesystem::directory_iterator(testing::source_path("tests/goldens/image/") + folder))
      if (!entry.path().string().ends_with("avif.png") &&
          !entry.path().string().ends_with("webp.png"))
        seeds.push_back(entry.path());
  for (const auto& path : seeds) {
    const std::string seed = testing::read_text(path);
    sound += testing::fuzz_image(std::as_bytes(std::span(seed)));
    for (int round = 0; round < 60; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(whole += testing::fuzz_image(std::as_bytes(std::span(text))))
          << path << " round " << round;
    }
  }
  EXPECT_GT(sound, 60u) << "the unmodified inputs cannot be decoded";
  EXPECT_GT(whole, 60u) << "every mutation was refused: this tests little";
}

TEST(Fuzz, Index) {
  const std::string seed = testing::index_of_fuzzed_jpegs();
  EXPECT_EQ(testing::fuzz_index(std::as_bytes(std::span(seed))), 6u);  // 3 files, twice
  Mutator mutator(8);
  size_t used = 0;
  for (int round = 0; round < 100; ++round) {
    const std::string text = mutator.mutate(seed);
    ASSERT_NO_THROW(used += testing::fuzz_index(std::as_bytes(std::span(text)))) << round;
    std::string changes(size_t{4} * (1 + mutator.below(3)), '\0');
    for (char& c : changes) c = char(mutator.below(256));
    ASSERT_NO_THROW(used += testing::fuzz_index(std::as_bytes(std::span(changes)))) << round;
  }
  EXPECT_GT(used, 50u) << "every mutation was refused: this tests little";
}

constexpr size_t kRounds = 1000;

// How many of kRounds random inputs of a few changes are decoded.
size_t decoded_of(uint64_t seed, size_t (*fuzz)(std::span<const std::byte>)) {
  Mutator mutator(seed);
  size_t decoded = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    std::string changes(3 + mutator.below(30), '\0');
    for (char& c : changes) c = char(mutator.below(256));
    EXPECT_NO_THROW(decoded += fuzz(std::as_bytes(std::span(changes)))) << round;
  }
  return decoded;
}

TEST(Fuzz, Unpack) {
  const size_t decoded = decoded_of(9, testing::fuzz_unpack);
  EXPECT_GT(decoded, kRounds / 50);
  EXPECT_LT(decoded, kRounds / 2) << "most changes were harmless: this tests little";
}

TEST(Fuzz, Segments) {
  EXPECT_EQ(testing::fuzz_segments({}), 1u) << "a sound file is not decoded";
  const size_t decoded = decoded_of(10, testing::fuzz_segments);
  EXPECT_GT(decoded, kRounds / 50);
  EXPECT_LT(decoded, kRounds) << "every change was harmless: this tests little";
}

TEST(Fuzz, Mask) {
  Mutator mutator(3);
  size_t sound = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           testing::source_path("tests/goldens/segmentation/masks"))) {
    const std::string seed = testing::read_text(entry.path());
    sound += testing::fuzz_mask(std::as_bytes(std::span(seed)));
    for (int round = 0; round < 200; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(testing::fuzz_mask(std::as_bytes(std::span(text))))
          << entry.path() << " round " << round;
    }
  }
  EXPECT_EQ(sound, 5u) << "the unmodified inputs cannot be decoded";
}

// The pickle in an archive of torch.save, whose records are stored uncompressed.
std::string pickle_in(const std::string& path) {
  const std::string text = testing::read_text(path);
  const size_t begin = text.find("\x80\x02}");
  const size_t other = text.find(
      "\x80\x02"
      "ccollections");
  const size_t at = std::min(begin, other);
  EXPECT_NE(at, std::string::npos) << path;
  return text.substr(at, text.find("PK\x07\x08", at) - at);
}

TEST(Fuzz, Pickle) {
  const std::string goldens = testing::source_path("tests/goldens/weights/");
  Mutator mutator(3);
  size_t sound = 0, read = 0;
  for (const std::string& seed :
       {pickle_in(goldens + "all_kinds.pt"), pickle_in(goldens + "training.pt"),
        testing::read_text(goldens + "legacy.pt")}) {
    sound += testing::fuzz_pickle(std::as_bytes(std::span(seed)));
    for (int round = 0; round < 3000; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(read += testing::fuzz_pickle(std::as_bytes(std::span(text)))) << round;
    }
  }
  EXPECT_GT(sound, 40u) << "the unmodified inputs cannot be read";
  EXPECT_GT(read, 1000u) << "every mutation was refused: this tests little";
}

void fuzz_records(size_t (*parse)(std::span<const std::byte>),
                  const std::vector<std::string>& seeds, uint64_t key) {
  Mutator mutator(key);
  size_t read = 0;
  for (const std::string& seed : seeds) {
    EXPECT_GT(parse(std::as_bytes(std::span(seed))), 0u) << "the unmodified input cannot be read";
    for (int round = 0; round < 1000; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(read += parse(std::as_bytes(std::span(text)))) << round << ": " << text;
    }
  }
  EXPECT_GT(read, 0u) << "every mutation was refused: this tests little";
}

TEST(Fuzz, Recipe) {
  std::vector<std::string> seeds;
  for (const char* name : {"demo", "cifar10", "imagenet-sample"})
    seeds.push_back(testing::read_text(testing::source_path("recipes/") + name + ".toml"));
  fuzz_records(testing::fuzz_recipe, seeds, 4);
}

TEST(Fuzz, Safetensors) {
  fuzz_records(
      testing::fuzz_safetensors,
      {testing::read_text(testing::source_path("tests/goldens/model/") + "all_types.safetensors")},
      5);
}

TEST(Fuzz, LmdbRecords) {
  Sample sample;
  sample.bytes.resize(12);
  sample.encoding = SampleEncoding::kRaw;
  sample.width = 2;
  sample.height = 2;
  sample.channels = 3;
  sample.name = "a name";
  fuzz_records(
      testing::fuzz_lmdb,
      {testing::to_text(encode_record(sample)), testing::to_text(encode_meta({3, {"cat", "dog"}}))},
      6);
}

TEST(Fuzz, LmdbTree) {
  fuzz_records(testing::fuzz_lmdb,
               {gunzip(format_golden("python.mdb.gz")), gunzip(format_golden("foreign.mdb.gz"))},
               7);
}

// Images and labels are the same file here, so that no input is valid: the inputs have rank 3.
TEST(Fuzz, Idx) {
  const std::string plain = testing::read_text(format_golden("train-images-idx3-ubyte"));
  Mutator mutator(1);
  for (const std::string& seed :
       {plain, testing::read_text(format_golden("t10k-images-idx3-ubyte.gz"))})
    for (int round = 0; round < 2000; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(testing::fuzz_source("idx", std::as_bytes(std::span(text)))) << round;
    }
}

}  // namespace
}  // namespace saturate
