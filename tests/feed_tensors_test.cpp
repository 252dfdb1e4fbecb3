// Samples that are tensors, from the loader's batches to a model's input and labels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "feed/tensor_batch.h"
#include "tests/array_testing.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::npy;
using testing::raw;
using testing::TempDir;
using testing::ZipText;

// Sample i of seven: f [2] float64 of i and -i, w [2, 1] uint16 of i and 10 i, b bool of i > 3, c
// int32 of i % 3, y [2] float16 of i and i / 2.
class TensorFeed : public ::testing::Test {
 protected:
  void SetUp() override {
    ZipText zip(/*deflated=*/false);
    std::vector<double> f;
    std::vector<uint16_t> w, y;
    std::vector<int32_t> c;
    std::string b;
    for (int i = 0; i < 7; ++i) {
      f.insert(f.end(), {double(i), -double(i)});
      w.insert(w.end(), {uint16_t(i), uint16_t(10 * i)});
      b += char(i > 3);
      c.push_back(i % 3);
      y.insert(y.end(), {c10::Half(float(i)).x, c10::Half(float(i) / 2).x});
    }
    zip.add("f.npy", npy("<f8", "7, 2", raw(f)));
    zip.add("w.npy", npy("<u2", "7, 2, 1", raw(w)));
    zip.add("b.npy", npy("|b1", "7,", b));
    zip.add("c.npy", npy("<i4", "7,", raw(c)));
    zip.add("y.npy", npy("<f2", "7, 2", raw(y)));
    testing::write_file(dir_ / "all.npz", zip.text());
  }

  // The batches of three of an epoch in order.
  std::vector<DeviceBatch> fed(const std::string& options, bool pipeline = false) {
    const auto data = open_dataset(Env::posix(), "npz:" + (dir_ / "all.npz") + options);
    fields = data->tensors();
    LoaderOptions loading;
    loading.batch = 3;
    loading.shuffle.mode = ShuffleMode::kNone;
    loading.output = BatchOutput::kTensors;
    Loader loader(*data, loading, {});
    Ledger ledger(Env::posix());
    Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger);
    if (pipeline) {
      PipelineSetup setup;
      setup.stages.copy = Toggle::kOn;
      setup.stages.check = true;
      feeder.use_pipeline(std::move(setup));
    }
    feeder.start_epoch(0);
    std::vector<DeviceBatch> batches;
    for (DeviceBatch batch; feeder.next(batch);) {
      EXPECT_FALSE(batch.is_unfinished());
      batches.push_back(batch);
      batches.back().images = batch.images.clone();
      batches.back().labels = batch.labels.clone();
    }
    EXPECT_EQ(batches.size(), 3u);
    EXPECT_EQ(ledger.times()[Phase::kAugment], 0) << "plain tensors are not augmented";
    return batches;
  }

  std::vector<TensorField> fields;

 private:
  TempDir dir_;
};

TEST_F(TensorFeed, OneFieldKeepsItsShapeAndWholeNumbers) {
  for (const bool pipeline : {false, true}) {
    const auto batches = fed(",fields=w+c,target=c", pipeline);
    const at::Tensor i = at::tensor({3, 4, 5}, at::kLong);
    EXPECT_EQ(batches[1].images.scalar_type(), at::kLong);
    EXPECT_EQ(batches[1].images.sizes(), (at::IntArrayRef{3, 2, 1}));
    EXPECT_TRUE(at::equal(batches[1].images.select(1, 1).flatten(), i * 10));
    EXPECT_TRUE(at::equal(batches[1].labels, i % 3));
    EXPECT_EQ(batches[2].count(), 1);
    EXPECT_TRUE(at::equal(batches[2].images.flatten(), at::tensor({6, 60}, at::kLong)));
  }
}

TEST_F(TensorFeed, SeveralFieldsAreRowsOfFloats) {
  const auto batches = fed(",fields=b+w+f+y,target=y");
  const TensorField input = input_of(fields);
  EXPECT_EQ(input.name, "b+w+f");
  EXPECT_EQ(input.type, ElementType::kFloat32);
  EXPECT_EQ(input.shape, std::vector<int64_t>{5});
  EXPECT_EQ(target_of(fields)->name, "y");
  EXPECT_FALSE(is_class(*target_of(fields)));
  const at::Tensor expected =
      at::tensor({0.f, 3.f, 30.f, 3.f, -3.f, 1.f, 4.f, 40.f, 4.f, -4.f, 1.f, 5.f, 50.f, 5.f, -5.f})
          .view({3, 5});
  EXPECT_TRUE(at::equal(batches[1].images, expected));
  EXPECT_TRUE(
      at::equal(batches[1].labels, at::tensor({3.f, 1.5f, 4.f, 2.f, 5.f, 2.5f}).view({3, 2})));
}

// An empty batch, of a rank at the end of an epoch, has the same form.
TEST(TakeColumns, SharesTheLoadersMemoryOnACpu) {
  auto columns = std::make_shared<std::vector<BatchColumn>>();
  columns->push_back({{"x", ElementType::kFloat32, {4}}, 0});
  columns->push_back({{"y", ElementType::kFloat32, {}, true}, 64});
  alignas(64) std::byte memory[128] = {};
  Batch batch;
  batch.pixels = std::shared_ptr<std::byte>(memory, [](std::byte*) {});
  batch.columns = columns;
  batch.samples.resize(3);
  DeviceBatch out;
  take_columns(batch, at::kCPU, /*async=*/false, out);
  EXPECT_EQ(out.images.data_ptr(), memory);
  EXPECT_EQ(out.labels.data_ptr(), memory + 64);
  EXPECT_FALSE(has_class_labels(batch));
  batch.samples.clear();
  take_columns(batch, at::kCPU, /*async=*/false, out);
  EXPECT_EQ(out.images.sizes(), (at::IntArrayRef{0, 4}));
  EXPECT_EQ(out.count(), 0);
}

template <class T>
at::Tensor fed_voxel_labels(ElementType type, const std::array<T, 4>& values) {
  auto columns = std::make_shared<std::vector<BatchColumn>>();
  columns->push_back({{"x", ElementType::kFloat32, {1, 2, 2}}, 0});
  columns->back().field.is_volume = true;
  columns->push_back({{"y", type, {1, 2, 2}, true}, 64});
  alignas(64) std::byte memory[128] = {};
  std::memcpy(memory + 64, values.data(), sizeof values);
  Batch batch;
  batch.pixels = std::shared_ptr<std::byte>(memory, [](std::byte*) {});
  batch.columns = columns;
  batch.samples.resize(1);
  DeviceBatch out;
  take_columns(batch, at::kCPU, /*async=*/false, out);
  EXPECT_EQ(out.labels.sizes(), (at::IntArrayRef{1, 1, 2, 2}));
  return out.labels.flatten().clone();
}

TEST(TakeColumns, VoxelsWhoseLabelIsNegativeOr255AreIgnored) {
  const at::Tensor expected = at::tensor({-100, -100, 0, 2}, at::kLong);
  EXPECT_TRUE(at::equal(fed_voxel_labels<int64_t>(ElementType::kInt64, {255, -1, 0, 2}), expected));
  EXPECT_TRUE(
      at::equal(fed_voxel_labels<int16_t>(ElementType::kInt16, {255, -100, 0, 2}), expected));
  EXPECT_TRUE(at::equal(fed_voxel_labels<int8_t>(ElementType::kInt8, {-1, -2, 0, 2}), expected));
  EXPECT_TRUE(
      at::equal(fed_voxel_labels<uint8_t>(ElementType::kUint8, {255, 255, 0, 2}), expected));
  EXPECT_TRUE(at::equal(fed_voxel_labels<bool>(ElementType::kBool, {true, false, true, true}),
                        at::tensor({1, 0, 1, 1}, at::kLong)));
}

}  // namespace
}  // namespace saturate
