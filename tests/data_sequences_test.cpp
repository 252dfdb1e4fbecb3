// Samples of varying length: padded batches and their masks, the grouped order, ranks, errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/export.h"
#include "data/inspect.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/array_testing.h"
#include "tests/shard_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::format_golden;
using testing::npy;
using testing::raw;
using testing::TempDir;
using testing::write_file;

constexpr size_t kLongestText = 40;

// Sample i: x [length, 2] of float32 i, then 7777 as padding, and its length; some cannot be read.
class Varying : public Dataset {
 public:
  explicit Varying(size_t size, std::set<size_t> broken = {})
      : size_(size), broken_(std::move(broken)) {
    fields_ = {{"x", ElementType::kFloat32, {kLongestText, 2}},
               {"id", ElementType::kInt32, {}, true}};
    fields_[0].is_sequence = true;
  }
  size_t size() const override { return size_; }
  size_t length(size_t index) const override { return 1 + index * 7919 % kLongestText; }
  const std::vector<std::string>& classes() const override { return none_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  void read(size_t index, Sample& out) const override {
    if (broken_.contains(index)) fail(ErrorKind::kData, "broken", std::to_string(index), "Fix it");
    std::vector<float> x(2 * kLongestText, 7777);
    std::fill_n(x.begin(), 2 * length(index), float(index));
    const auto id = int32_t(index);
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(bytes_of(std::span(fields_)));
    std::memcpy(out.bytes.data(), x.data(), x.size() * sizeof(float));
    std::memcpy(out.bytes.data() + x.size() * sizeof(float), &id, sizeof id);
  }

 private:
  const size_t size_;
  const std::set<size_t> broken_;
  std::vector<TensorField> fields_;
  const std::vector<std::string> none_;
};

struct Padded {
  size_t length;
  std::vector<uint32_t> index;
  bool operator==(const Padded&) const = default;
};

std::span<const std::byte> column_bytes(const Batch& batch, const BatchColumn& column) {
  return {batch.pixels.get() + column.offset, batch.count() * column.field.bytes()};
}

// Checks a batch of Varying.
Padded checked(const Batch& batch, const Varying& data) {
  const auto& columns = *batch.columns;
  EXPECT_EQ(columns.size(), 3u);
  const auto length = size_t(columns[0].field.shape[0]);
  EXPECT_EQ(columns[2].field.name, "mask");
  EXPECT_EQ(columns[2].field.shape, (std::vector<int64_t>{int64_t(length)}));
  const auto x =
      testing::values_of<float>(column_bytes(batch, columns[0]), batch.count() * length * 2);
  const auto id = testing::values_of<int32_t>(column_bytes(batch, columns[1]), batch.count());
  const auto mask = column_bytes(batch, columns[2]);
  Padded out{length, {}};
  for (size_t i = 0; i < batch.count(); ++i) {
    const uint32_t index = batch.samples[i].index;
    EXPECT_EQ(id[i], int32_t(index));
    for (size_t place = 0; place < length; ++place) {
      const bool own = place < data.length(index);
      EXPECT_EQ(mask[i * length + place], std::byte(own));
      EXPECT_EQ(x[(i * length + place) * 2 + 1], own ? float(index) : 0) << index << " " << place;
    }
    out.index.push_back(index);
  }
  return out;
}

std::vector<Padded> padded_epoch(const Varying& data, const LoaderOptions& options, uint32_t epoch,
                                 size_t first = 0) {
  Loader loader(data, options, {});
  loader.start_epoch(epoch, first);
  std::vector<Padded> batches;
  for (Batch batch; loader.next(batch);) batches.push_back(checked(batch, data));
  return batches;
}

std::string golden_source(const std::string& options = ",fields=x+tags+n+y,sequence=x+tags") {
  return "npz:" + format_golden("sequences.npz") + ",lengths=n" + options;
}

// The checksums are numpy's.
TEST(Sequences, BatchesArePaddedAsNumpyPadsThem) {
  std::vector<std::pair<int64_t, uint64_t>> expected;
  std::ifstream file(format_golden("sequences.tsv"));
  int64_t length = 0;
  for (uint64_t hash = 0; file >> std::dec >> length >> std::hex >> hash;)
    expected.emplace_back(length, hash);
  ASSERT_EQ(expected.size(), 4u);
  const TempDir dir;
  PackOptions packing;
  packing.out = "shard:" + (dir / "a.shard");
  pack_dataset(env(), *open_dataset(env(), golden_source()), packing);
  DataOptions cached, staged;
  cached.cache.mode = CacheMode::kRam;
  staged.stage.mode = StageMode::kTmpfs;
  staged.stage.folder = dir.path();
  for (const auto& [uri, input] :
       {std::pair(golden_source(), DataOptions()), std::pair(packing.out, cached),
        std::pair(golden_source(), staged)}) {
    const auto data = open_input(env(), uri, input);
    LoaderOptions options = testing::tensor_options(4, 3);
    options.shuffle.mode = ShuffleMode::kNone;
    Loader loader(*data, options, {});
    loader.start_epoch(0);
    std::vector<std::pair<int64_t, uint64_t>> found;
    for (Batch batch; loader.next(batch);) {
      const auto& columns = *batch.columns;
      ASSERT_EQ(columns.size(), 5u);
      EXPECT_EQ(columns[2].field.name, "n");
      EXPECT_TRUE(columns[3].field.is_target);
      uint64_t hash = testing::hash_bytes(column_bytes(batch, columns[0]));
      hash = testing::hash_bytes(column_bytes(batch, columns[1]), hash);
      hash = testing::hash_bytes(column_bytes(batch, columns[4]), hash);
      found.emplace_back(columns[0].field.shape[0], hash);
    }
    EXPECT_EQ(found, expected) << uri;
  }
}

TEST(Sequences, AnEpochIsAPermutationOfSimilarLengths) {
  const Varying data(1003);
  const auto batches = padded_epoch(data, testing::tensor_options(8), 3);
  ASSERT_EQ(batches.size(), 126u);
  EXPECT_EQ(batches.back().index.size(), 3u);
  EXPECT_EQ(padded_epoch(data, testing::tensor_options(8, 4), 3), batches);
  EXPECT_NE(padded_epoch(data, testing::tensor_options(8), 4), batches);
  const auto plain = epoch_order(1003, 6, 3, {});
  size_t used = 0, padded = 0, ungrouped = 0, place = 0;
  std::vector<uint32_t> window, expected;
  for (size_t i = 0; i < batches.size(); ++i) {
    size_t longest = 0;
    for (const uint32_t index : batches[i].index) {
      used += data.length(index);
      longest = std::max(longest, data.length(plain[place]));
      window.push_back(index);
      expected.push_back(plain[place++]);
    }
    padded += batches[i].length * batches[i].index.size();
    ungrouped += (longest + 7) / 8 * 8 * batches[i].index.size();
    // Windows of a quarter of the 125 whole batches have the samples of the ungrouped order.
    if ((i + 1) % 31 != 0 && i + 2 < batches.size()) continue;
    std::ranges::sort(window);
    std::ranges::sort(expected);
    EXPECT_EQ(window, expected) << "up to batch " << i;
    window.clear();
    expected.clear();
  }
  EXPECT_EQ(place, 1003u);
  EXPECT_LT(double(padded), 1.3 * double(used));  // of which half is due to multiples of 8
  EXPECT_GT(double(ungrouped), 1.6 * double(used));
}

TEST(Sequences, WholeBatchesAreFilledByLength) {
  const std::vector<uint32_t> lengths = {5, 1, 9, 5, 2, 7, 3, 8, 6, 4, 5, 1};
  std::vector<uint32_t> order(lengths.size() - 1);
  std::iota(order.begin(), order.end(), uint32_t{0});
  const auto grouped = length_order(order, 5, 1, 2, lengths);
  // Two batches are windows of one each, sorted with ties in order; the incomplete one is as it
  // was.
  EXPECT_EQ(grouped, (std::vector<uint32_t>{1, 4, 0, 3, 2, 6, 9, 8, 5, 7, 10}));
  EXPECT_EQ(length_order({}, 5, 1, 2, {}), std::vector<uint32_t>());
}

TEST(Sequences, RanksShareBatchesOfOneLengthAndResumeAtAnotherWorldSize) {
  const Varying data(150);
  const auto whole = padded_epoch(data, testing::tensor_options(12), 1);
  const auto of_ranks = [&](int world, size_t first) {
    std::vector<Padded> batches;
    for (int rank = 0; rank < world; ++rank) {
      LoaderOptions options = testing::tensor_options(12, 2);
      options.shard = {rank, world, Uneven::kJoin};
      const auto own = padded_epoch(data, options, 1, first);
      batches.resize(own.size(), {0, {}});
      for (size_t b = 0; b < own.size(); ++b) {
        EXPECT_TRUE(rank == 0 || batches[b].length == own[b].length);
        batches[b].length = own[b].length;
        batches[b].index.insert(batches[b].index.end(), own[b].index.begin(), own[b].index.end());
      }
    }
    for (Padded& batch : batches) std::ranges::sort(batch.index);
    return batches;
  };
  auto expected = whole;
  for (Padded& batch : expected) std::ranges::sort(batch.index);
  EXPECT_EQ(of_ranks(3, 0), expected);
  EXPECT_EQ(of_ranks(2, 5), std::vector(expected.begin() + 5, expected.end()));
  EXPECT_EQ(padded_epoch(data, testing::tensor_options(12), 1, 5),
            std::vector(whole.begin() + 5, whole.end()));
}

TEST(Sequences, SkippedSamplesLeaveNoGaps) {
  const Varying data(60, {0, 7, 31, 59});
  LoaderOptions options = testing::tensor_options(16, 2);
  options.on_error = OnError::kSkip;
  size_t samples = 0;
  for (const Padded& batch : padded_epoch(data, options, 0)) samples += batch.index.size();
  EXPECT_EQ(samples, 56u);
}

TEST(Sequences, DefaultsSplitsAndInspectionKnowThem) {
  const auto data = open_dataset(env(), golden_source(",fields=x+n+y"));
  EXPECT_TRUE(data->tensors()[0].is_sequence);
  EXPECT_FALSE(data->tensors()[1].is_sequence);
  EXPECT_EQ(data->length(4), 9u);
  EXPECT_EQ(open_dataset(env(), "split:train,1/5," + golden_source())->length(4), 2u);
  const TempDir dir;
  write_file(dir / "x.npy", npy("<i2", "2, 3", raw(std::vector<int16_t>{1, 2, 99, 3, 99, 99})));
  write_file(dir / "n.npy", npy("|u1", "2,", std::string("\2\1", 2)));
  write_file(dir / "w.npy", npy("|u1", "2,", "ab"));
  const auto small = open_dataset(env(), "npy:" + dir.path() + ",lengths=n");
  EXPECT_FALSE(small->tensors()[1].is_sequence) << "w, one value for each sample";
  EXPECT_NE(
      error_of([&] { open_dataset(env(), "npy:" + dir.path() + ",lengths=n,vocabulary=100"); })
          .reason()
          .find("the source also has"),
      std::string::npos);
  const DatasetReport report = inspect_dataset(*small, InspectDepth::kHeaders, 1);
  const auto x =
      std::ranges::find(report.fields, "x", [](const auto& of) { return of.field.name; });
  EXPECT_EQ(x->max, 3);
  EXPECT_EQ(x->mean, 2);
}

TEST(Sequences, ErrorsNameTheArray) {
  const auto expect = [](const std::string& uri, ErrorKind kind, const std::string& part) {
    const Error error = error_of([&] { open_dataset(env(), uri); });
    EXPECT_EQ(error.kind(), kind);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
  };
  const std::string golden = "npz:" + format_golden("sequences.npz");
  expect(golden + ",lengths=m", ErrorKind::kUsage, "no array \"m\"");
  expect(golden + ",lengths=x", ErrorKind::kUsage, "\"x\" is not one of lengths");
  expect(golden + ",lengths=y", ErrorKind::kUsage, "\"y\" is not one of lengths");
  expect(golden + ",sequence=x", ErrorKind::kUsage, "lengths= is missing");
  expect(golden + ",lengths=n,fields=n+y", ErrorKind::kUsage, "no array of sequences");
  expect(golden + ",lengths=n,sequence=x+n", ErrorKind::kUsage, "a single value");
  const TempDir dir;
  const auto written = [&](const std::string& lengths, const std::string& name = "z",
                           const std::string& type = "|i1") {
    testing::ZipText zip(false);
    zip.add("x.npy", npy("|u1", "2, 3", "abcdef"));
    zip.add(name + ".npy", npy("|u1", "2, 4", "abcdefgh"));
    zip.add("n.npy", npy(type, "2,", lengths));
    write_file(dir / "a.npz", zip.text());
    return "npz:" + (dir / "a.npz") + ",lengths=n";
  };
  expect(written("\1\3"), ErrorKind::kUsage, "sequences of different sizes");
  expect(written("\1\3", "mask") + ",sequence=x", ErrorKind::kUsage, "a field named mask");
  for (const char bad : {'\0', '\4', '\xff'})
    expect(written(std::string("\1") + bad) + ",fields=x+n", ErrorKind::kData,
           "sample 1 has the length " + std::to_string(int(bad)));
  expect(written(raw(std::vector<uint64_t>{1, uint64_t{1} << 63}), "z", "<u8") + ",fields=x+n",
         ErrorKind::kData, "sample 1 has the length 2^63 or more,");
}

// x, and y one place further, as tokens: has them; without the padding's 99.
TEST(Sequences, TokensHaveTheNextTokensAsTheirTarget) {
  const TempDir dir;
  testing::ZipText zip(false);
  zip.add("n.npy", npy("|u1", "3,", std::string("\2\4\3", 3)));
  zip.add("t.npy",
          npy("<u2", "3, 4", raw(std::vector<uint16_t>{1, 2, 99, 99, 3, 4, 5, 6, 8, 7, 0, 99})));
  write_file(dir / "a.npz", zip.text());
  const std::string source = "npz:" + (dir / "a.npz") + ",lengths=n,vocabulary=9";
  PackOptions packing;
  packing.out = "shard:" + (dir / "a.shard");
  pack_dataset(env(), *open_dataset(env(), source), packing);
  for (const std::string& uri : {source, packing.out, source + ",fields=t+n"}) {
    const auto data = open_dataset(env(), uri);
    ASSERT_EQ(data->tensors().size(), 2u);
    EXPECT_EQ(data->tensors()[0],
              (TensorField{"t", ElementType::kUint16, {3}, false, 9, "", false, true}));
    EXPECT_EQ(data->tensors()[1],
              (TensorField{"y", ElementType::kUint16, {3}, true, 9, "", false, true}));
    Sample sample;
    const std::vector<std::vector<uint16_t>> expected = {{1, 2}, {3, 4, 5, 4, 5, 6}, {8, 7, 7, 0}};
    for (size_t i = 0; i < 3; ++i) {
      data->read(i, sample);
      const size_t length = data->length(i);
      ASSERT_EQ(2 * length, expected[i].size());
      ASSERT_EQ(sample.bytes.size(), 12u);
      std::vector<uint16_t> found = testing::values_of<uint16_t>(sample.bytes, length);
      const auto next = testing::values_of<uint16_t>(sample.bytes, length, 6);
      found.insert(found.end(), next.begin(), next.end());
      EXPECT_EQ(found, expected[i]) << uri;
    }
  }
  write_file(dir / "t.npy", npy("|u1", "2, 3", std::string("\0\1\2\3\4\5", 6)));
  const auto windows = open_dataset(env(), "npy:" + (dir / "t.npy") + ",vocabulary=6");
  EXPECT_EQ(windows->tensors()[1], (TensorField{"y", ElementType::kUint8, {2}, true, 6}));
  EXPECT_EQ(windows->length(1), 0u);
  Sample sample;
  windows->read(1, sample);
  EXPECT_EQ(testing::values_of<uint8_t>(sample.bytes, 4), (std::vector<uint8_t>{3, 4, 4, 5}));
}

TEST(Sequences, ArraysThatAreNotTokensAreRefused) {
  const TempDir dir;
  const auto expect = [](const std::string& uri, ErrorKind kind, const std::string& part) {
    const Error error = error_of([&] { open_dataset(env(), uri); });
    EXPECT_EQ(error.kind(), kind);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
  };
  const auto written = [&](const std::string& name, const std::string& lengths) {
    testing::ZipText zip(false);
    zip.add(name + ".npy", npy("|u1", "2, 3", std::string("\5\6\7\4\3\2", 6)));
    zip.add("n.npy", npy("|u1", "2,", lengths));
    zip.add("c.npy", npy("<i4", "2,", raw(std::vector<int32_t>{0, 1})));
    zip.add("f.npy", npy("<f4", "2, 3", raw(std::vector<float>(6, 0))));
    write_file(dir / (name + ".npz"), zip.text());
    return "npz:" + (dir / (name + ".npz")) + ",lengths=n,vocabulary=7";
  };
  const std::string x = written("x", "\3\2");
  expect(x + ",fields=x+n+c,sequence=x", ErrorKind::kUsage, "also has x and c");
  expect(x + ",fields=x+n+c,sequence=x,target=c", ErrorKind::kUsage, "also has c");
  expect(x + ",fields=f+n", ErrorKind::kUsage, "\"f\" is not one of tokens");
  expect(written("y", "\3\2") + ",fields=y+n", ErrorKind::kUsage, "\"y\" is not one of tokens");
  expect(written("x", "\3\1") + ",fields=x+n", ErrorKind::kData, "sample 1 has one token");
  for (const char* wrong : {"0", "-1", "2147483648", "x"})
    expect("npy:" + (dir / "t.npy") + ",vocabulary=" + wrong, ErrorKind::kUsage, "vocabulary=");
  const auto data = open_dataset(env(), written("x", "\3\3") + ",fields=x+n");
  Sample sample;
  const Error error = error_of([&] { data->read(0, sample); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.reason(), "token 2 is 7, and the vocabulary has 7");
  data->read(1, sample);
}

TEST(Sequences, TokensMayBeInAnArrayWithoutAName) {
  const TempDir dir;
  testing::ZipText zip(false);
  zip.add(".npy", npy("|u1", "2, 3", std::string("\5\6\7\4\3\2", 6)));
  write_file(dir / "a.npz", zip.text());
  const auto data = open_dataset(env(), "npz:" + (dir / "a.npz") + ",vocabulary=9");
  Sample sample;
  data->read(1, sample);
  EXPECT_EQ(testing::to_text(sample.bytes), "\4\3\3\2");
}

TEST(Sequences, HostileShardsAreRefused) {
  const TempDir dir;
  PackOptions packing;
  packing.out = "shard:" + (dir / "good.shard");
  pack_dataset(env(), *open_dataset(env(), golden_source(",fields=x+n+y,sequence=x")), packing);
  testing::Forged good;
  good.text = testing::read_text(dir / "good.shard");
  const auto expect = [&](size_t at, uint32_t value, const std::string& part) {
    testing::Forged bad = good;
    testing::put(bad.text, at, value);
    bad.fix_checksums();
    write_file(dir / "bad.shard", bad.text);
    const Error error = error_of([&] { open_dataset(env(), dir / "bad.shard"); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.reason().find(part), std::string::npos) << error.what();
  };
  for (const uint32_t length : {0u, 14u, UINT32_MAX})
    expect(good.record(3) + 24, length, "sample 3 is of length");
  const size_t x = good.text.find("float32", good.index());
  expect(x + 7, 6, "is marked as a volume, and is not one");
  const size_t n = good.text.find("uint16", good.index());
  expect(n + 6, 4, "a sequence that is a single value");
}

}  // namespace
}  // namespace saturate
