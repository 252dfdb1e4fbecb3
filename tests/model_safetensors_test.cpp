// safetensors compared with files of Python's safetensors (tests/oracles/model_goldens.py), and
// hostile files.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "saturate/data/error.h"
#include "saturate/safetensors.h"
#include "tests/paths.h"

namespace saturate {
namespace {

const std::string kGoldens = testing::source_path("tests/goldens/model/");

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "saturate-" + std::to_string(::getpid()) + "-" + name;
}

std::string contents(const std::string& path) {
  const auto bytes = read_file(Env::posix(), path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Safetensors, ReadsEveryTypeThatPythonWrites) {
  const auto file = read_safetensors(Env::posix(), kGoldens + "all_types.safetensors");
  const std::map<std::string, at::ScalarType> types{
      {"f64", at::kDouble}, {"f32", at::kFloat}, {"f16", at::kHalf},  {"bf16", at::kBFloat16},
      {"i64", at::kLong},   {"i32", at::kInt},   {"i16", at::kShort}, {"i8", at::kChar},
      {"u8", at::kByte},    {"bool", at::kBool}};
  EXPECT_EQ(file.tensors.size(), types.size() * 3 + 1);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "naïve \"名\"") {
      EXPECT_TRUE(at::equal(tensor, at::arange(3).to(at::kFloat)));
      continue;
    }
    EXPECT_EQ(tensor.scalar_type(), types.at(name.substr(0, name.find('.')))) << name;
    if (name.ends_with(".scalar")) {
      EXPECT_EQ(tensor.dim(), 0);
      EXPECT_EQ(tensor.item<int>(), 1);
    } else if (name.ends_with(".empty")) {
      EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{2, 0, 3}));
    } else {
      EXPECT_TRUE(at::equal(tensor, at::arange(15).to(tensor.scalar_type()).view({3, 5}))) << name;
    }
  }
}

TEST(Safetensors, RewritesPythonsFilesByteForByte) {
  for (const std::string name : {"all_types.safetensors", "no_tensors.safetensors"}) {
    const auto file = read_safetensors(Env::posix(), kGoldens + name);
    const std::string path = temporary(name);
    write_safetensors(Env::posix(), path, file.tensors, file.metadata);
    EXPECT_TRUE(contents(path) == contents(kGoldens + name)) << name;
    std::filesystem::remove(path);
  }
}

TEST(Safetensors, StoresAnyLayoutContiguously) {
  const std::string path = temporary("layout");
  const at::Tensor image = at::arange(2 * 3 * 4 * 5).view({2, 3, 4, 5}).to(at::kFloat);
  write_safetensors(Env::posix(), path,
                    {{"bytes", at::full({3}, 7, at::kByte)},
                     {"last", image.contiguous(at::MemoryFormat::ChannelsLast)},
                     {"slice", image.select(1, 1).requires_grad_()}},
                    {{"a", "1"}, {"b", "zwei\n"}});
  const auto file = read_safetensors(Env::posix(), path);
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors[0].name, "last");  // widest elements first
  EXPECT_TRUE(at::equal(file.tensors[0].tensor, image));
  EXPECT_TRUE(file.tensors[0].tensor.is_contiguous());
  EXPECT_TRUE(at::equal(file.tensors[1].tensor, image.select(1, 1)));
  EXPECT_EQ(file.tensors[2].name, "bytes");
  EXPECT_EQ(file.metadata.at("b"), "zwei\n");
  uint64_t length = 0;
  std::memcpy(&length, contents(path).data(), 8);
  EXPECT_EQ(length % 8, 0u);
  std::filesystem::remove(path);
}

void expect_unwritable(const std::vector<NamedTensor>& tensors, const std::string& reason) {
  const std::string path = temporary("unwritable");
  try {
    write_safetensors(Env::posix(), path, tensors, {});
    ADD_FAILURE() << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.reason();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, DoesNotWriteFilesThatCannotBeRead) {
  const at::Tensor one = at::full({1}, 1.0);
  expect_unwritable({{"a", one}, {"a", one}}, "called \"a\"");
  expect_unwritable({{"__metadata__", one}}, "__metadata__");
  expect_unwritable({{"\xff", one}}, "UTF-8");
  expect_unwritable({{"z", one.to(at::kComplexFloat)}}, "\"z\"");
}

TEST(Safetensors, MissingFileIsARunError) {
  try {
    read_safetensors(Env::posix(), "/nowhere/x.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_EQ(error.where(), "/nowhere/x.safetensors");
  }
}

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

std::string with_header(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header) + std::string(data_bytes, '\2');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

void expect_refused(const std::string& bytes, const std::string& reason) {
  const std::string path = temporary("hostile");
  write_atomically(Env::posix(), path, bytes);
  try {
    read_safetensors(Env::posix(), path);
    ADD_FAILURE() << "accepted, instead of: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_EQ(error.where(), path);
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.reason();
    EXPECT_EQ(error.reason().find('\n'), std::string::npos) << error.reason();
  }
  std::filesystem::remove(path);
}

TEST(Safetensors, RefusesHostileHeaders) {
  expect_refused("", "shorter than 8");
  expect_refused(with_length(3, "{}"), "would take 3");
  expect_refused(with_length(UINT64_MAX, "{}"), "would take");
  expect_refused(with_length(UINT64_MAX - 7, "{}"), "would take");
  expect_refused(with_length(100'000'001, "{}"), "would take");
  expect_refused(with_header("", 0), "start with {");
  expect_refused(with_header("[]", 0), "start with {");
  expect_refused(with_header("{\"a\":", 0), "valid JSON");
  expect_refused(with_header("{} {}", 0), "valid JSON");
  expect_refused(with_header("{\"\xff\":1}", 0), "valid JSON");
  expect_refused(with_header("{\"a\":" + std::string(100'000, '[') + "}", 0), "too deep");
  expect_refused(with_header(R"({"__metadata__":{"a":1}})", 0), "is not text");
  expect_refused(with_header(R"({"__metadata__":[]})", 0), "not an object");
  expect_refused(with_header("{}", 1), "belong to no tensor");
}

TEST(Safetensors, RefusesHostileTensors) {
  const auto refuse = [](const std::string& entry, size_t data_bytes, const std::string& reason) {
    expect_refused(with_header("{\"a\\nb\":" + entry + "}", data_bytes),
                   "tensor \"a\\nb\" " + reason);
  };
  refuse("1", 0, "is not described");
  refuse("{}", 0, "has no dtype");
  refuse(R"({"dtype":"U8"})", 0, "has no shape");
  refuse(R"({"dtype":"U8","shape":[]})", 1, "has no data_offsets");
  refuse(tensor("F8", "[1]", "[0,1]"), 1, "has the dtype \"F8\", which is not supported");
  refuse(tensor("U8", "[-1]", "[0,1]"), 1, "has no valid shape");
  refuse(tensor("U8", "[1.5]", "[0,1]"), 1, "has no valid shape");
  refuse(tensor("U8", "[18446744073709551616]", "[0,1]"), 1, "has no valid shape");
  refuse(tensor("U8", "[9223372036854775808]", "[0,1]"), 1, "has no valid shape");
  refuse(tensor("F64", "[4611686018427387904,4]", "[0,0]"), 0, "has a shape too large");
  refuse(tensor("U8", "[0,4611686018427387904,4]", "[0,0]"), 0, "has a shape too large");
  refuse(tensor("U8", "[1]", "[0]"), 1, "has no valid data_offsets");
  refuse(tensor("U8", "[1]", "[-1,0]"), 1, "has no valid data_offsets");
  refuse(tensor("U8", "[1]", "[1,0]"), 1, "ends before");
  refuse(tensor("F32", "[1]", "[0,3]"), 3, "has a shape of 4 bytes but 3");
  refuse(tensor("U8", "[2]", "[0,2]"), 1, "lies outside");
  refuse(tensor("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1, "lies outside");
  refuse(tensor("U8", "[1]", "[1,2]"), 2, "leaves a hole");
  refuse(tensor("BOOL", "[1]", "[0,1]"), 1, "is BOOL");
}

TEST(Safetensors, RefusesTensorsThatConflict) {
  const std::string byte = tensor("U8", "[1]", "[0,1]");
  expect_refused(with_header("{\"a\":" + byte + ",\"a\":" + byte + "}", 1), "\"a\" twice");
  expect_refused(with_header("{\"a\":" + byte + ",\"b\":" + byte + "}", 1), "overlaps");
  expect_refused(with_header(R"({"a":{"dtype":"U8","dtype":"U8"}})", 1), "\"dtype\" twice");
}

TEST(Safetensors, AnyTruncationIsAnError) {
  const std::string whole = contents(kGoldens + "all_types.safetensors");
  for (size_t size = 0; size < whole.size(); size += 7) expect_refused(whole.substr(0, size), "");
}

}  // namespace
}  // namespace saturate
