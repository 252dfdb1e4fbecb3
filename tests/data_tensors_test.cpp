// Samples of tensors in the loader, the caches and the tools.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/inspect.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/array_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::TempDir;
using testing::values_of;
using testing::write_file;

// Sample i: a [3] int16 of i, i + 1, i + 2, and a bool that tells odd from even.
class Counting : public Dataset {
 public:
  explicit Counting(size_t size, size_t broken = SIZE_MAX) : size_(size), broken_(broken) {}
  size_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return none_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  void read(size_t index, Sample& out) const override {
    out.name = "number " + std::to_string(index);
    out.encoding = SampleEncoding::kTensors;
    const int16_t i = int16_t(index);
    const int16_t values[] = {i, int16_t(i + 1), int16_t(i + 2)};
    const auto bytes = std::as_bytes(std::span(values));
    out.bytes.assign(bytes.begin(), bytes.end());
    if (index != broken_) out.bytes.push_back(std::byte(index % 2));
    out.label = 0;
  }

 private:
  const size_t size_, broken_;
  const std::vector<std::string> none_;
  const std::vector<TensorField> fields_{{"n", ElementType::kInt16, {3}},
                                         {"odd", ElementType::kBool, {}, true, 2}};
};

LoaderOptions options_of(size_t batch, int threads = 1) {
  LoaderOptions options;
  options.batch = batch;
  options.threads = threads;
  options.output = BatchOutput::kTensors;
  options.names = true;
  options.seed = 3;
  return options;
}

// Checks a batch's columns, and returns its samples' indices.
std::vector<uint32_t> indices_of(const Batch& batch) {
  EXPECT_EQ(batch.output, BatchOutput::kTensors);
  std::vector<uint32_t> indices;
  if (!batch.columns) return indices;
  const BatchColumn &numbers = (*batch.columns)[0], &odd = (*batch.columns)[1];
  EXPECT_EQ(numbers.field.name, "n");
  EXPECT_EQ(odd.offset % 64, 0u);
  for (size_t i = 0; i < batch.count(); ++i) {
    const std::span memory(batch.pixels.get() + numbers.offset, (i + 1) * 6);
    const auto row = values_of<int16_t>(memory, 3, i * 6);
    const auto index = int16_t(batch.samples[i].index);
    EXPECT_EQ(row, (std::vector<int16_t>{index, int16_t(index + 1), int16_t(index + 2)}));
    EXPECT_EQ(batch.pixels.get()[odd.offset + i], std::byte(index % 2));
    EXPECT_EQ(batch.samples[i].name, "number " + std::to_string(index));
    indices.push_back(batch.samples[i].index);
  }
  return indices;
}

std::vector<std::vector<uint32_t>> epoch_of(Loader& loader, uint32_t epoch, size_t first = 0) {
  std::vector<std::vector<uint32_t>> batches;
  Batch batch;
  loader.start_epoch(epoch, first);
  while (loader.next(batch)) batches.push_back(indices_of(batch));
  return batches;
}

TEST(TensorLoader, BatchesAreColumnsInTheOrderOfTheEpoch) {
  const Counting data(150);
  Loader one(data, options_of(16), {}), four(data, options_of(16, 4), {});
  const auto batches = epoch_of(one, 5);
  ASSERT_EQ(batches.size(), 10u);
  EXPECT_EQ(batches.back().size(), 6u);
  std::vector<uint32_t> all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  EXPECT_EQ(all, epoch_order(150, 3, 5, {}));
  EXPECT_EQ(epoch_of(four, 5), batches);
  EXPECT_EQ(epoch_of(four, 5, 7), std::vector(batches.begin() + 7, batches.end()))
      << "continued in the middle";
}

TEST(TensorLoader, RanksDivideEachBatch) {
  const Counting data(20);
  std::vector<uint32_t> all;
  for (int rank = 0; rank < 3; ++rank) {
    LoaderOptions options = options_of(8);
    options.shard = {rank, 3, Uneven::kJoin};
    Loader loader(data, options, {});
    for (const auto& batch : epoch_of(loader, 0)) all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<uint32_t> expected(20);
  std::iota(expected.begin(), expected.end(), 0u);
  EXPECT_EQ(all, expected);
}

TEST(TensorLoader, ASampleOfAnotherSizeIsNamedOrSkippedInAllColumns) {
  const Counting data(20, 7);
  LoaderOptions options = options_of(20, 2);
  options.shuffle.mode = ShuffleMode::kNone;
  {
    Loader loader(data, options, {});
    loader.start_epoch(0);
    Batch batch;
    const Error error = error_of([&] { loader.next(batch); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.where(), "sample 7, number 7");
    EXPECT_NE(error.reason().find("the 7 bytes of tensors"), std::string::npos);
  }
  options.on_error = OnError::kSkip;
  Loader loader(data, options, {});
  const auto batches = epoch_of(loader, 0);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].size(), 19u);
  EXPECT_EQ(batches[0][7], 8u);
  EXPECT_EQ(loader.skipped_count(), 1u);
}

TEST(TensorLoader, ImagesAndTensorsAreNotConfused) {
  const Counting tensors(4);
  const testing::MemoryDataset images({testing::noise_jpeg(8, 8, 1)}, {"a"});
  AugmentOptions augment;
  augment.size = 8;
  LoaderOptions options = options_of(2);
  EXPECT_NE(error_of([&] { Loader(images, options, augment); }).reason().find("has images"),
            std::string::npos);
  options.output = BatchOutput::kInterleaved;
  EXPECT_NE(error_of([&] { Loader(tensors, options, augment); }).reason().find("has tensors"),
            std::string::npos);
  augment.cutmix = 1;
  EXPECT_NE(error_of([&] { Loader(tensors, options_of(2), augment); }).reason().find("mixed"),
            std::string::npos);
  Sample sample;
  tensors.read(0, sample);
  Decoder decoder;
  Image image;
  EXPECT_NE(error_of([&] { decode_sample(decoder, sample, image); }).reason().find("of tensors"),
            std::string::npos);
}

TEST(TensorDatasets, CacheAndSplitKeepThem) {
  const TempDir dir;
  write_file(dir / "a.npz", testing::small_npz(false));
  const std::string uri = "npz:" + (dir / "a.npz");
  DataOptions options;
  options.cache.mode = CacheMode::kRam;
  options.cache.form = CacheForm::kDecoded;
  const auto cached = open_input(env(), "split:train,1/5," + uri, options);
  ASSERT_EQ(cached->size(), 4u);
  EXPECT_EQ(cached->tensors().size(), 2u);
  EXPECT_EQ(cached->decoded(3), nullptr);
  for (int pass = 0; pass < 2; ++pass) {
    Sample sample;
    cached->read(3, sample);
    EXPECT_EQ(values_of<float>(sample.bytes, 2), (std::vector<float>{4, 4.5}));
    EXPECT_EQ(sample.encoding, SampleEncoding::kTensors);
  }
  EXPECT_GT(cached_bytes(), 0u);
}

TEST(TensorDatasets, InspectionReportsFieldsClassesAndBrokenSamples) {
  const TempDir dir;
  testing::ZipText zip(false);
  zip.add("h.npy", testing::npy("<f2", "3,", std::string("\0\x3c\0\xc0\0\x7c", 6)));  // 1 -2 inf
  zip.add("label.npy", testing::npy("<i4", "3,", testing::raw(std::vector<int32_t>{0, 1, 1})));
  write_file(dir / "a.npz", zip.text());
  const auto data = open_dataset(env(), dir / "a.npz");
  const DatasetReport report = inspect_dataset(*data, InspectDepth::kHeaders, 2);
  ASSERT_EQ(report.fields.size(), 2u);
  EXPECT_EQ(report.fields[0].min, -2);
  EXPECT_EQ(report.fields[0].max, 1);
  EXPECT_EQ(report.fields[0].mean, -0.5);
  EXPECT_EQ(report.fields[0].finite, 2u);
  EXPECT_EQ(report.fields[0].not_finite, 1u);
  EXPECT_EQ(report.class_samples, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(report.bytes, 18u);
  EXPECT_TRUE(report.broken.empty());
  write_file(dir / "t.bin", testing::raw(std::vector<uint16_t>{1, 2, 3, 4, 50}));
  const auto tokens = open_dataset(env(), "tokens:" + (dir / "t.bin") + ",context=2,vocabulary=9");
  const DatasetReport found = inspect_dataset(*tokens, InspectDepth::kPixels, 1);
  ASSERT_EQ(found.broken.size(), 1u);
  EXPECT_EQ(found.broken[0].name, (dir / "t.bin") + ": token 2");
  EXPECT_EQ(found.fields[1].max, 3);
}

TEST(TensorDatasets, InspectionCountsTheLabelsOfVoxels) {
  const TempDir dir;
  write_file(dir / "x.npy", testing::npy("<f4", "2, 1, 2, 2", std::string(32, '\0')));
  const std::vector<int16_t> labels{0, 0, 2, 255, -1, 0, 0, 1};
  write_file(dir / "y.npy", testing::npy("<i2", "2, 1, 2, 2", testing::raw(labels)));
  const auto data = open_dataset(env(), "npy:" + dir.path() + ",volume=x");
  const DatasetReport report = inspect_dataset(*data, InspectDepth::kHeaders, 2);
  EXPECT_TRUE(report.has_voxels);
  EXPECT_EQ(report.class_samples, (std::vector<size_t>{2, 1, 1}));
  EXPECT_EQ(report.class_pixels, (std::vector<uint64_t>{4, 1, 1}));
  EXPECT_EQ(report.ignored_pixels, 2u);
}

// ---- Drawn tables
// --------------------------------------------------------------------------------

TEST(SynthTable, TheTargetIsFriedmansFunctionOfTheInputs) {
  const std::string options = "synth-table:count=50,inputs=7,outputs=2,noise=0";
  const auto train = open_dataset(env(), options);
  const auto test = open_dataset(env(), options + ",split=test");
  EXPECT_EQ(train->tensors()[0].shape, std::vector<int64_t>{7});
  EXPECT_EQ(train->tensors()[1].shape, std::vector<int64_t>{2});
  Sample sample, other;
  for (size_t i = 0; i < train->size(); ++i) {
    train->read(i, sample);
    const auto values = values_of<float>(sample.bytes, 9);
    for (size_t output : {0, 1}) {
      const auto u = [&](size_t at) {
        return double(values[(output + at) % 7]) * std::sqrt(1.0 / 12) + 0.5;
      };
      const double y = 10 * std::sin(3.14159265358979 * u(0) * u(1)) +
                       20 * (u(2) - 0.5) * (u(2) - 0.5) + 10 * u(3) + 5 * u(4);
      EXPECT_NEAR(values[7 + output], (y - 14.4) / 4.9, 1e-5);
    }
    test->read(i, other);
    EXPECT_NE(sample.bytes, other.bytes);
  }
  for (const char* wrong : {"inputs=4", "noise=x", "rows=3", "split=held"})
    EXPECT_EQ(error_of([&] { open_dataset(env(), std::string("synth-table:") + wrong); }).where(),
              std::string("synth-table:") + wrong);
}

}  // namespace
}  // namespace saturate
