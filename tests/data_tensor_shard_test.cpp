// Shards of tensors: packed from every source of them, read as their source, and hostile ones.
#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <vector>

#include "data/export.h"
#include "data/field_table.h"
#include "data/inspect.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/array_testing.h"
#include "tests/shard_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::Forged;
using testing::format_golden;
using testing::get;
using testing::npy;
using testing::put;
using testing::raw;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

PackReport pack_tensors(const Dataset& dataset, const std::string& path, PackOptions options = {}) {
  options.out = "shard:" + path;
  return pack_dataset(env(), dataset, options);
}

std::unique_ptr<Dataset> open_source(const std::string& uri) {
  return open_dataset(env(), uri);
}

// One of every kind of source. The table's classes are not in bytewise order.
std::vector<std::string> tensor_sources(const TempDir& dir) {
  std::vector<uint16_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  write_file(dir / "tokens.bin", raw(tokens));
  write_file(dir / "a.safetensors", testing::small_safetensors());
  write_file(dir / "a.csv",
             "size,colour,kind\n1.5,red,2\n3,blue,10\n,red,2\n8,green,9\n4,red,10\n");
  write_file(dir / "n/volume.npy", npy("<f4", "5, 3, 4, 6", raw(std::vector<float>(360, 0.5f))));
  std::vector<int16_t> labels(360);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = int16_t(i % 9 == 0 ? -100 : i % 4);
  write_file(dir / "n/y.npy", npy("<i2", "5, 3, 4, 6", raw(labels)));
  return {"npz:" + format_golden("arrays.npz"),
          "npz:" + format_golden("tensors.npz") + ",volume=v",
          "npy:" + (dir / "n") + ",volume=volume",
          "safetensors:" + (dir / "a.safetensors"),
          "csv:" + (dir / "a.csv") + ",classes=true",
          "split:train,1/3,csv:" + (dir / "a.csv") + ",target=colour",
          "tokens:" + (dir / "tokens.bin") + ",context=16,vocabulary=200",
          "synth-table:count=40",
          "synth-text:count=20,context=24,symbols=9",
          "synth-volume:count=6,size=8"};
}

// All batches of an epoch: every byte, the order and the labels.
std::string batch_bytes_of(const Dataset& dataset, int threads) {
  LoaderOptions options;
  options.batch = 4;
  options.threads = threads;
  options.output = BatchOutput::kTensors;
  options.seed = 11;
  AugmentOptions augment;
  for (const TensorField& field : dataset.tensors())
    if (field.is_volume) {
      augment.crop = CropKind::kRandom;
      augment.size = 3;
      augment.flip = 0.5;
    }
  Loader loader(dataset, options, augment);
  loader.start_epoch(2);
  std::string all;
  for (Batch batch; loader.next(batch);) {
    for (const BatchSample& sample : batch.samples)
      all += std::to_string(sample.index) + ":" + std::to_string(sample.label) + " ";
    for (const BatchColumn& column : *batch.columns)
      all.append(reinterpret_cast<const char*>(batch.pixels.get() + column.offset),
                 column.field.bytes() * batch.count());
  }
  return all;
}

TEST(TensorShard, OpensAsItsSourceAndGivesTheSameBatches) {
  const TempDir dir;
  int number = 0;
  for (const std::string& uri : tensor_sources(dir)) {
    const auto source = open_source(uri);
    const std::string path = dir / (std::to_string(number++) + ".shard");
    PackOptions options;
    options.threads = 3;
    options.verify = true;
    const PackReport report = pack_tensors(*source, path, options);
    EXPECT_EQ(report.samples, source->size()) << uri;
    EXPECT_EQ(report.bytes, source->size() * bytes_of(std::span(source->tensors())));
    const auto shard = open_source("shard:" + path);
    EXPECT_EQ(shard->tensors(), source->tensors()) << uri;
    EXPECT_EQ(shard->note(), source->note());
    testing::expect_equal(*source, *shard);
    const std::string batches = batch_bytes_of(*source, 1);
    for (const int threads : {1, 4}) EXPECT_EQ(batch_bytes_of(*shard, threads), batches) << uri;
    // The held part of a csv: is of other statistics.
    if (!uri.starts_with("csv:")) {
      EXPECT_EQ(batch_bytes_of(*open_source("split:held,1/2,shard:" + path), 2),
                batch_bytes_of(*open_source("split:held,1/2," + uri), 2))
          << uri;
    }
    pack_tensors(*shard, path + "-again");
    EXPECT_EQ(read_text(path + "-again"), read_text(path)) << uri;
    const DatasetReport seen = inspect_dataset(*shard, InspectDepth::kPixels, 2);
    EXPECT_TRUE(seen.broken.empty());
    EXPECT_EQ(seen.fields.size(), source->tensors().size());
  }
}

// numpy wrote the arrays, and Python the shard, by docs/shard_format.md only.
TEST(TensorShard, EqualsTheOneWrittenByPython) {
  const TempDir dir;
  const std::string python = testing::gunzip(format_golden("tensors.shard.gz"));
  pack_tensors(*open_source("npz:" + format_golden("tensors.npz") + ",volume=v"), dir / "a.shard");
  EXPECT_EQ(read_text(dir / "a.shard"), python);
}

TEST(TensorShard, KeepsHowATableWasNormalised) {
  const TempDir dir;
  write_file(dir / "a.csv", "size,colour,price\n2,red,1\n4,blue,2\n6,red,3\n");
  pack_tensors(*open_source("csv:" + (dir / "a.csv")), dir / "a.shard");
  // The population's deviation, sqrt(8 / 3).
  EXPECT_EQ(open_source(dir / "a.shard")->note(),
            "x is (size - 4) / 1.632993161855452, colour = blue, colour = red");
  write_file(dir / "b.csv", "size,colour,price\n20,red,1\n40,blue,2\n60,red,3\n");
  pack_tensors(*open_source("csv:" + (dir / "b.csv")), dir / "b.shard");
  const Error joined =
      error_of([&] { open_source("shard:" + (dir / "a.shard") + "," + (dir / "b.shard")); });
  EXPECT_NE(joined.reason().find("normalisation than"), std::string::npos) << joined.what();
}

TEST(TensorShard, SeveralHaveTheSameFieldsAndClasses) {
  const TempDir dir;
  const auto a = open_source("synth-table:count=5"), b = open_source("synth-table:count=4,seed=2");
  pack_tensors(*a, dir / "parts/0.shard");
  pack_tensors(*b, dir / "parts/1.shard");
  const auto both = open_source("shard:" + (dir / "parts"));
  ASSERT_EQ(both->size(), 9u);
  Sample x, y;
  for (size_t i = 0; i < 9; ++i) {
    (i < 5 ? a : b)->read(i % 5, x);
    both->read(i, y);
    EXPECT_EQ(x.bytes, y.bytes);
  }
  pack_tensors(*open_source("synth-table:count=4,inputs=11"), dir / "parts/2.shard");
  const Error other = error_of([&] { open_source("shard:" + (dir / "parts")); });
  EXPECT_NE(other.reason().find("other fields"), std::string::npos);
  EXPECT_NE(other.where().find("2.shard"), std::string::npos);
}

TEST(TensorShard, OptionsForImagesAndOtherFormatsAreRefused) {
  const TempDir dir;
  const auto table = open_source("synth-table:count=5");
  PackOptions options;
  options.out = "shard:" + (dir / "a.shard");
  const auto refused = [&](auto PackOptions::*option, auto value) {
    PackOptions given = options;
    given.*option = value;
    const Error error = error_of([&] { pack_dataset(env(), *table, given); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("tensors"), std::string::npos) << error.what();
  };
  refused(&PackOptions::max_side, 8);
  refused(&PackOptions::quality, 90);
  refused(&PackOptions::raw_fraction, 0.5);
  refused(&PackOptions::out, "tar:" + (dir / "a.tar"));
  refused(&PackOptions::out, "lmdb:" + (dir / "a"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(TensorShard, BrokenRowsAreSkippedOrFail) {
  const TempDir dir;
  write_file(dir / "a.csv", "a,b\n1,2\n3,\n5,6\n");
  const auto table = open_source("csv:" + (dir / "a.csv"));
  EXPECT_EQ(error_of([&] { pack_tensors(*table, dir / "a.shard"); }).kind(), ErrorKind::kData);
  PackOptions options;
  options.on_error = OnError::kSkip;
  const PackReport report = pack_tensors(*table, dir / "a.shard", options);
  EXPECT_EQ(report.samples, 2u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_NE(report.skipped[0].name.find("row 1"), std::string::npos);
}

TEST(TensorShard, PaddingOfSequencesMayHaveAnyValue) {
  const std::vector<TensorField> fields = {
      {.name = "x", .type = ElementType::kInt64, .shape = {4}, .values = 5, .is_sequence = true}};
  const std::vector<int64_t> values = {1, 2, -1, 99};
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_EQ(problem_of_values(fields, 2, bytes), "");
  EXPECT_NE(problem_of_values(fields, 3, bytes), "");
}

TEST(TensorShard, FieldsHaveNamesAndABoolTwoValues) {
  TensorField field{.name = "", .type = ElementType::kBool, .shape = {3}};
  EXPECT_EQ(problem_of(std::span(&field, 1), 0), "a field has no name");
  field.name = "flag";
  field.values = 2;
  EXPECT_EQ(problem_of(std::span(&field, 1), 0), "");
  field.values = 3;
  EXPECT_NE(problem_of(std::span(&field, 1), 0), "");
}

TEST(TensorShard, AStagedCopyHasTheBatchesOfItsSource) {
  const TempDir dir;
  write_file(dir / "a.csv", "a,b,c\n1,2,3\n3,4,\n5,6,1\n2,2,2\n");
  DataOptions options;
  options.stage.mode = StageMode::kTmpfs;
  options.stage.folder = dir.path();
  const std::string volumes = "synth-volume:count=6,size=8";
  EXPECT_EQ(batch_bytes_of(*open_input(env(), volumes, options), 2),
            batch_bytes_of(*open_source(volumes), 1));
  const auto staged = open_input(env(), "csv:" + (dir / "a.csv"), options);
  Sample sample;
  staged->read(2, sample);
  EXPECT_NE(error_of([&] { staged->read(1, sample); }).reason().find("target is missing"),
            std::string::npos);
}

class HostileTensorShard : public ::testing::Test {
 protected:
  HostileTensorShard() { good.text = testing::gunzip(format_golden("tensors.shard.gz")); }
  // The field that has this name, after six records and three classes of one letter.
  size_t field(const std::string& name) const {
    const std::string sized = std::string(1, char(name.size())) + std::string(3, '\0') + name;
    return good.text.find(sized, good.index() + 6 * 40 + 3 * 5);
  }
  size_t flags(const std::string& name, const std::string& type) const {
    return field(name) + 8 + name.size() + type.size();
  }
  template <class T>
  std::string forge(size_t at, T value) const {
    Forged bad = good;
    put(bad.text, at, value);
    bad.fix_checksums();
    return bad.text;
  }
  void expect_reason(const std::string& text, const std::string& part) {
    write_file(dir / "bad.shard", text);
    const Error error = error_of([&] { open_source(dir / "bad.shard"); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.where().find("bad.shard"), std::string::npos);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  TempDir dir;
  Forged good;
};

TEST_F(HostileTensorShard, EveryFlippedByteAndTruncationIsDetected) {
  write_file(dir / "good.shard", good.text);
  const auto expected = open_source(dir / "good.shard");
  for (size_t at = 0; at < good.text.size(); ++at) {
    if (good.text[at] == '\0' && at % 16 != 0) continue;
    std::string bad = good.text;
    bad[at] = char(bad[at] ^ 0x20);
    write_file(dir / "bad.shard", bad);
    bool noticed = false;
    try {
      testing::expect_equal(*open_source(dir / "bad.shard"), *expected);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      noticed = true;
    }
    const bool padding = good.text[at] == '\0' && at >= 64 && at < good.index();
    EXPECT_TRUE(noticed || padding) << "byte " << at;
  }
  for (size_t size = 0; size < good.text.size(); size += 53)
    expect_reason(good.text.substr(0, size), size < 64 ? "not a shard" : "shard");
}

TEST_F(HostileTensorShard, SizesThatOverflowOrLieAreRefused) {
  const size_t sizes = flags("x", "float32") + 16;  // after flags, values and dimensions
  ASSERT_EQ(get<uint64_t>(good.text, sizes), 2u);
  ASSERT_EQ(get<uint64_t>(good.text, sizes + 8), 3u);
  for (const uint64_t size : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 62,
                              uint64_t{1} << 61, uint64_t{1} << 40})
    expect_reason(forge(sizes, size), "field \"x\" has no values, or makes a sample larger");
  expect_reason(forge(sizes, (uint64_t{1} << 32) / 12), "field \"v\" has no values, or makes");
  // 2^61 x 8 values of 4 bytes overflow to 0.
  Forged wide = good;
  put(wide.text, sizes, uint64_t{1} << 61);
  put(wide.text, sizes + 8, uint64_t{8});
  wide.fix_checksums();
  expect_reason(wide.text, "larger than 4 GiB");
  expect_reason(forge(flags("v", "uint8") + 16, (uint64_t{1} << 32) / 20), "larger than 4 GiB");
  expect_reason(forge(sizes, uint64_t{3}), "sample 0 has 89 bytes, and its fields take 101");
  expect_reason(forge(sizes - 4, uint32_t{1}), "");
  expect_reason(forge(sizes - 4, UINT32_MAX), "dimensions");
}

TEST_F(HostileTensorShard, FieldsThatCannotBeAreRefused) {
  expect_reason(forge(good.trailer() + 48, uint32_t{0}), "has no field");
  for (const uint32_t count : {5u, 1000u, UINT32_MAX})
    expect_reason(forge(good.trailer() + 48, count), "");
  expect_reason(forge(good.trailer() + 40, UINT32_MAX), "class names");
  expect_reason(forge(field("x"), UINT32_MAX), "beyond the index");
  expect_reason(forge(field("x") + 4, 'y'), "is there twice");
  expect_reason(forge(field("x") + 9, 'F'), "is of type \"Float32\"");
  expect_reason(forge(flags("x", "float32"), uint32_t{1}), "two targets");
  expect_reason(forge(flags("x", "float32"), uint32_t{2}), "is not one of volumes");
  expect_reason(forge(flags("x", "float32") + 4, uint64_t{2}), "cannot have values");
  for (const uint64_t values : {UINT64_MAX, uint64_t{1} << 31})
    expect_reason(forge(flags("y", "int32") + 4, values), "cannot have values");
  for (const uint64_t values : {0, 4})
    expect_reason(forge(flags("y", "int32") + 4, values), "no target of as many");
  expect_reason(forge(flags("y", "int32"), uint32_t{0}), "no target of as many");
  const size_t symbols = flags("y", "int32") + 16;
  expect_reason(forge(symbols, uint32_t{2}), "");
  expect_reason(forge(symbols + 4, UINT32_MAX), "note beyond");
  expect_reason(forge(good.record(1) + 20, uint16_t{1}), "of kind 1 in a shard of tensors");
  expect_reason(forge(good.record(1) + 16, uint32_t{3}), "of class 3 of 3");
  // An older reader refuses the kind, by the version or, if that lies, by the record.
  expect_reason(forge(8, uint32_t{2}), "of kind 4");
}

// With correct checksums, as a program could write them.
TEST_F(HostileTensorShard, ValuesOutsideTheirRangeAreErrorsOfTheSample) {
  const auto error_at = [&](size_t field_offset, auto value) {
    Forged bad = good;
    const size_t at = bad.record(2), data = get<uint64_t>(bad.text, at);
    put(bad.text, data + field_offset, value);
    put(bad.text, at + 12, testing::crc_of(bad.text, data, 89));
    bad.fix_checksums();
    write_file(dir / "bad.shard", bad.text);
    const auto dataset = open_source(dir / "bad.shard");
    Sample sample;
    dataset->read(1, sample);
    EXPECT_EQ(inspect_dataset(*dataset, InspectDepth::kPixels, 1).broken.size(), 1u);
    return error_of([&] { dataset->read(2, sample); });
  };
  for (const int32_t label : {3, -1, INT32_MAX, INT32_MIN}) {
    const Error error = error_at(85, label);
    EXPECT_EQ(error.reason(), "field \"y\" has a number that is not from 0 to 2");
    EXPECT_NE(error.where().find("bad.shard:2"), std::string::npos);
  }
  EXPECT_EQ(error_at(24, uint8_t{2}).reason(),
            "field \"flag\" has a number that is not from 0 to 1");
}

}  // namespace
}  // namespace saturate
