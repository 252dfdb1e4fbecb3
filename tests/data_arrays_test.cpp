// npy:, npz:, safetensors: and tokens:.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "tests/array_testing.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::llmc_tokens;
using testing::npy;
using testing::npy_of;
using testing::raw;
using testing::small_npz;
using testing::TempDir;
using testing::values_of;
using testing::write_file;

Sample sample_of(const Dataset& dataset, size_t index) {
  Sample sample;
  dataset.read(index, sample);
  return sample;
}

TEST(NpySource, SamplesAreRowsAndALabelIsAClass) {
  const TempDir dir;
  write_file(dir / "set/x.npy", npy("<f8", "3, 2", raw(std::vector<double>{1, 2, 3, 4, 5, 6})));
  write_file(dir / "set/y.npy", npy("|u1", "3,", std::string("\0\2\1", 3)));
  write_file(dir / "set/notes.txt", "");
  const auto dataset = open_dataset(env(), "npy:" + (dir / "set"));
  ASSERT_EQ(dataset->size(), 3u);
  EXPECT_EQ(dataset->tensors(),
            (std::vector<TensorField>{{"x", ElementType::kFloat64, {2}, false, 0},
                                      {"y", ElementType::kUint8, {}, true, 3}}));
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"0", "1", "2"}));
  const Sample sample = sample_of(*dataset, 1);
  EXPECT_EQ(sample.encoding, SampleEncoding::kTensors);
  EXPECT_EQ(values_of<double>(sample.bytes, 2), (std::vector<double>{3, 4}));
  EXPECT_EQ(sample.bytes.size(), 17u);
  EXPECT_EQ(sample.bytes[16], std::byte{2});
  EXPECT_EQ(sample.label, 2);
  EXPECT_EQ(sample.name, (dir / "set") + ":1");
  EXPECT_EQ(dataset->bytes(0), 17u);
}

TEST(NpySource, FortranOrderAndBigEndianAreConverted) {
  const TempDir dir;
  // [[1, 2, 3], [4, 5, 6]] by columns, the high byte first.
  write_file(dir / "f.npy", npy(">i2", "2, 3", std::string("\0\1\0\4\0\2\0\5\0\3\0\6", 12), true));
  const auto dataset = open_dataset(env(), dir / "f.npy");
  EXPECT_EQ(values_of<int16_t>(sample_of(*dataset, 0).bytes, 3), (std::vector<int16_t>{1, 2, 3}));
  EXPECT_EQ(values_of<int16_t>(sample_of(*dataset, 1).bytes, 3), (std::vector<int16_t>{4, 5, 6}));
  EXPECT_TRUE(dataset->classes().empty());
  EXPECT_FALSE(dataset->tensors()[0].is_target);
}

TEST(NpySource, LargeOrNegativeNumbersAreNoClasses) {
  const TempDir dir;
  const auto classes = [&](const std::vector<int32_t>& y) {
    write_file(dir / "y.npy", npy("<i4", "2,", raw(y)));
    return open_dataset(env(), dir / "y.npy")->classes().size();
  };
  EXPECT_EQ(classes({3, 65535}), 65536u);
  EXPECT_EQ(classes({3, 65536}), 0u);
  EXPECT_EQ(classes({-1, 1}), 0u);
  write_file(dir / "y.npy", npy("<u8", "1,", std::string(8, '\xff')));
  EXPECT_TRUE(open_dataset(env(), dir / "y.npy")->classes().empty());
}

TEST(NpySource, ABoolIsZeroOrOne) {
  const TempDir dir;
  write_file(dir / "y.npy", npy("|b1", "3,", std::string("\0\x07\1", 3)));
  const auto dataset = open_dataset(env(), dir / "y.npy");
  EXPECT_EQ(dataset->classes().size(), 2u);
  EXPECT_EQ(sample_of(*dataset, 1).bytes[0], std::byte{1});
}

TEST(NpySource, ALargeArrayIsReadFromTheFile) {
  const TempDir dir;
  constexpr size_t kRows = 17 << 10, kRow = 4096;  // 68 MiB
  const std::string path = dir / "x.npy";
  write_file(path, npy("|u1", std::to_string(kRows) + ", " + std::to_string(kRow), ""));
  const size_t begin = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, begin + kRows * kRow);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(begin + (kRows - 1) * kRow));
    file.put(7);
  }
  const auto dataset = open_dataset(env(), "npy:" + path);
  EXPECT_EQ(sample_of(*dataset, kRows - 1).bytes[0], std::byte{7});
  EXPECT_EQ(sample_of(*dataset, kRows - 2).bytes[0], std::byte{0});
  std::filesystem::resize_file(path, begin + kRows * kRow - 1);
  EXPECT_EQ(error_of([&] { sample_of(*dataset, kRows - 1); }).kind(), ErrorKind::kData);
}

// Read at the start, and once more in C order: it needs twice the memory.
TEST(NpySource, AnArrayThatDoesNotFitInMemoryIsRefused) {
  const TempDir dir;
  const std::string path = dir / "x.npy";
  const auto memory = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  const uint64_t rows = memory / 16 + 1;  // of 8 bytes
  write_file(path, npy("<f4", std::to_string(rows) + ", 2", "", /*fortran=*/true));
  std::error_code failed;
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + rows * 8, failed);
  if (failed) GTEST_SKIP() << "this file system has no such files: " << failed.message();
  const Error error = error_of([&] { open_dataset(env(), "npy:" + path); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), path);
  EXPECT_NE(error.reason().find("the array takes"), std::string::npos) << error.reason();
}

TEST(NpySource, HostileFilesAreRefusedWithAReason) {
  const struct {
    std::string text, reason;
  } kCases[] = {
      {npy("|O", "1,", "x"), "a pickle"},
      {npy_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234"),
       "records of several fields"},
      {npy("<c8", "1,", "12345678"), "type \"<c8\""},
      {npy("<U2", "1,", "12345678"), "type \"<U2\""},
      {npy("<M8[s]", "1,", "12345678"), "type \"<M8[s]\""},
      {npy("<f4", "2,", "1234"), "8 bytes of values, and 4 follow"},
      {npy("<f4", "1,", "12345"), "4 bytes of values, and 5 follow"},
      {npy("<f4", "4294967296, 4294967296, 4", ""), "more values than can be counted"},
      {npy("<f4", "99999999999999999999,", ""), "more values than can be counted"},
      {npy("<f4", "4611686018427387904, 2", ""), "more values than can be counted"},
      {npy("<f4", "-1,", ""), "negative size"},
      {npy("<f4", "0, 3", ""), "no values"},
      {npy("<f4", "", "1234"), "single value"},
      {npy("<f4",
           "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
           "1, 1, 1, 1, 1, 1, 1",
           "1234"),
       "malformed"},
      {npy_of("{'descr': '<f4', 'shape': (1,), }", "1234"), "malformed"},
      {npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } + f()", "1234"),
       "malformed"},
      {npy_of("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "1234"),
       "malformed"},
      {std::string("\x93NUMPY\x04\x00\x10\x00", 10), "version 4"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), "too long"},
      {std::string("\x93NUMPY\x01\x00\x76\x00{", 11), "truncated in its header"},
      {"\x93NUM", "not an array of numpy"},
      {"", "not an array of numpy"},
  };
  const TempDir dir;
  for (const auto& [text, reason] : kCases) {
    write_file(dir / "x.npy", text);
    const Error error = error_of([&] { open_dataset(env(), "npy:" + (dir / "x.npy")); });
    EXPECT_EQ(error.kind(), ErrorKind::kData) << reason;
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.reason();
    EXPECT_EQ(error.where(), dir / "x.npy");
  }
}

TEST(NpzSource, StoredAndCompressedHoldTheSameSamples) {
  const TempDir dir;
  write_file(dir / "a.npz", small_npz(false));
  write_file(dir / "b.npz", small_npz(true));
  for (const char* name : {"a.npz", "b.npz"}) {
    const auto dataset = open_dataset(env(), dir / name);
    ASSERT_EQ(dataset->size(), 5u);
    const Sample sample = sample_of(*dataset, 4);
    EXPECT_EQ(values_of<float>(sample.bytes, 2), (std::vector<float>{4, 4.5})) << name;
    EXPECT_EQ(sample.label, 1) << name;
  }
}

// tests/oracles/array_goldens.py: every type, in both orders of bytes and of indices.
TEST(NpzSource, SamplesEqualNumpys) {
  std::ifstream expected(testing::format_golden("arrays.tsv"));
  const auto stored = open_dataset(env(), testing::format_golden("arrays.npz")),
             compressed = open_dataset(env(), testing::format_golden("arrays-compressed.npz"));
  ASSERT_EQ(stored->size(), 4u);
  size_t index = 0;
  uint64_t hash = 0;
  for (; expected >> std::dec >> index >> std::hex >> hash;)
    for (const auto& dataset : {stored.get(), compressed.get()})
      EXPECT_EQ(testing::hash_bytes(sample_of(*dataset, index).bytes), hash) << index;
  EXPECT_EQ(index, 3u);
  const auto array = open_dataset(env(), testing::format_golden("fortran-big-endian.npy"));
  const auto same =
      open_dataset(env(), "npz:" + testing::format_golden("arrays.npz") + ",fields=float32");
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(sample_of(*array, i).bytes, sample_of(*same, i).bytes) << i;
}

TEST(NpzSource, FieldsAndTargetCanBeChosen) {
  const TempDir dir;
  testing::ZipText zip(false);
  zip.add("y.npy", npy("<f4", "2,", raw(std::vector<float>{1, 2})));
  zip.add("far.npy", npy("<f4", "3,", raw(std::vector<float>{1, 2, 3})));
  zip.add("x.npy", npy("<f4", "2,", raw(std::vector<float>{5, 6})));
  zip.add("a/x.npy", npy("<f4", "3,", raw(std::vector<float>{1, 2, 3})));
  write_file(dir / "a.npz", zip.text());
  const std::string uri = "npz:" + (dir / "a.npz");
  const auto names = [&](const std::string& options) {
    std::string text;
    const auto dataset = open_dataset(env(), uri + options);
    for (const TensorField& field : dataset->tensors())
      text += field.name + (field.is_target ? "* " : " ");
    return text;
  };
  EXPECT_EQ(names(",fields=x+y"), "x y* ");
  EXPECT_EQ(names(",target=x,fields=y+x"), "y x* ");
  EXPECT_EQ(names(",fields=far"), "far ");
  EXPECT_EQ(names(",fields=a/x+far"), "a/x far ") << "folders are part of a name";
  EXPECT_TRUE(open_dataset(env(), uri + ",fields=x+y")->classes().empty()) << "y has fractions";
  const Error lengths = error_of([&] { open_dataset(env(), uri); });
  EXPECT_NE(lengths.reason().find("array y has 2 samples, and array far has 3"), std::string::npos);
  EXPECT_EQ(error_of([&] { names(",fields=x+x"); }).kind(), ErrorKind::kUsage);
  EXPECT_NE(error_of([&] { names(",fields=x,target=z"); }).reason().find("\"z\""),
            std::string::npos);
}

TEST(NpzSource, DamagedArchivesAreRefused) {
  const TempDir dir;
  const auto reason = [&](const std::string& text) {
    write_file(dir / "a.npz", text);
    const Error error = error_of([&] { open_dataset(env(), "npz:" + (dir / "a.npz")); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.reason();
  };
  const std::string whole = small_npz(true);
  EXPECT_NE(reason(whole.substr(0, whole.size() - 1)).find("end is missing"), std::string::npos);
  for (const bool deflated : {true, false}) {
    std::string damaged = small_npz(deflated);
    damaged[60] = char(damaged[60] ^ 1);
    EXPECT_NE(reason(damaged).find("is damaged"), std::string::npos);
  }
  testing::ZipText twice(false);
  for (int i = 0; i < 2; ++i) twice.add("x.npy", npy("|u1", "1,", "a"));
  EXPECT_NE(reason(twice.text()).find("\"x\" twice"), std::string::npos);
  testing::ZipText none(false);
  EXPECT_NE(reason(none.text()).find("no array"), std::string::npos);
  testing::ZipText text(false);
  text.add("readme.txt", "hello");
  EXPECT_NE(reason(text.text()).find("not an array"), std::string::npos);
}

TEST(SafetensorsSource, ReadsTensorsAndRefusesDamage) {
  const TempDir dir;
  const std::string text = testing::small_safetensors();
  write_file(dir / "a.safetensors", text);
  const auto dataset = open_dataset(env(), dir / "a.safetensors");
  ASSERT_EQ(dataset->size(), 3u);
  EXPECT_EQ(values_of<float>(sample_of(*dataset, 2).bytes, 2), (std::vector<float>{4, 5}));
  EXPECT_EQ(sample_of(*dataset, 0).label, 0);
  EXPECT_EQ(sample_of(*dataset, 2).label, 1);
  for (const char* type : {"U16", "U32", "U64"}) {
    const size_t bytes = size_t(std::stoi(type + 1)) / 8;
    const std::string header = fmt::format(
        R"({{"x":{{"dtype":"{}","shape":[2],"data_offsets":[0,{}]}}}})", type, 2 * bytes);
    std::string file(8, '\0');
    file[0] = char(header.size());
    file += header + std::string(2 * bytes, '\xff');
    write_file(dir / "u.safetensors", file);
    const auto whole = open_dataset(env(), "safetensors:" + (dir / "u.safetensors") + ",target=x");
    EXPECT_EQ(whole->tensors()[0].bytes(), bytes) << type;
    EXPECT_EQ(sample_of(*whole, 1).bytes, std::vector<std::byte>(bytes, std::byte{0xff})) << type;
  }
  for (const std::string& bad :
       {text.substr(0, text.size() - 1), text.substr(0, 5), testing::small_safetensors("F64")}) {
    write_file(dir / "b.safetensors", bad);
    EXPECT_EQ(
        error_of([&] { open_dataset(env(), "safetensors:" + (dir / "b.safetensors")); }).kind(),
        ErrorKind::kData);
  }
}

TEST(TokensSource, SamplesAreTokensAndThoseThatFollow) {
  const TempDir dir;
  write_file(dir / "a.bin", raw(std::vector<uint16_t>{1, 2, 3, 4, 5, 6, 7, 65535}));
  write_file(dir / "b.bin", llmc_tokens({10, 11, 12, 13}, 4));
  const std::string uri = "tokens:" + (dir / "a.bin") + "," + (dir / "b.bin") + ",context=3";
  const auto dataset = open_dataset(env(), uri);
  ASSERT_EQ(dataset->size(), 3u) << "two of the first file, one of the second";
  const std::vector<std::vector<int64_t>> expected = {
      {1, 2, 3, 2, 3, 4}, {4, 5, 6, 5, 6, 7}, {10, 11, 12, 11, 12, 13}};
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(values_of<int64_t>(sample_of(*dataset, i).bytes, 6), expected[i]) << i;
  EXPECT_EQ(sample_of(*dataset, 1).name, (dir / "a.bin") + ": token 3");
  EXPECT_TRUE(dataset->tensors()[1].is_target);
  EXPECT_EQ(open_dataset(env(), "tokens:" + (dir / "a.bin") + ",context=7")->size(), 1u);
  write_file(dir / "c.bin", raw(std::vector<uint32_t>{1, 70000, 3}));
  const auto wide = open_dataset(env(), "tokens:" + (dir / "c.bin") + ",context=2,type=uint32");
  EXPECT_EQ(values_of<int64_t>(sample_of(*wide, 0).bytes, 4),
            (std::vector<int64_t>{1, 70000, 70000, 3}));
}

TEST(TokensSource, TokensOutsideTheVocabularyAndBadFilesAreErrors) {
  const TempDir dir;
  write_file(dir / "a.bin", raw(std::vector<uint16_t>{1, 2, 3, 4, 50}));
  const std::string uri = "tokens:" + (dir / "a.bin");
  const auto dataset = open_dataset(env(), uri + ",context=2,vocabulary=50");
  sample_of(*dataset, 0);
  const Error outside = error_of([&] { sample_of(*dataset, 1); });
  EXPECT_EQ(outside.kind(), ErrorKind::kData);
  EXPECT_EQ(outside.reason(), "token 4 is 50, and the vocabulary has 50");
  EXPECT_EQ(error_of([&] { open_dataset(env(), uri + ",context=5"); }).kind(), ErrorKind::kData);
  for (const char* options : {",context=0", ",context=x", ",vocabulary=-1", ",type=int8",
                              ",context=99999999999999999999"})
    EXPECT_EQ(error_of([&] { open_dataset(env(), uri + options); }).kind(), ErrorKind::kUsage)
        << options;
  write_file(dir / "b.bin", "odd");
  write_file(dir / "c.bin", llmc_tokens({1, 2, 3}, 4));
  for (const char* name : {"b.bin", "c.bin"})
    EXPECT_EQ(
        error_of([&] { open_dataset(env(), "tokens:" + (dir / name) + ",context=1"); }).kind(),
        ErrorKind::kData);
  for (const int32_t number : {20240520, 20240801}) {  // the header would be read as tokens
    std::vector<int32_t> header(256);
    header[0] = number;
    header[1] = 3;
    write_file(dir / "d.bin", raw(header) + raw(std::vector<uint16_t>{1, 2, 3, 4}));
    const Error version = error_of([&] { open_dataset(env(), "tokens:" + (dir / "d.bin")); });
    EXPECT_EQ(version.kind(), ErrorKind::kData);
    EXPECT_NE(version.reason().find("version 3"), std::string::npos) << version.reason();
  }
}

}  // namespace
}  // namespace saturate
