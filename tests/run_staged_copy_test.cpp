// Checkpoints of tensors on another device: copies that are in progress when training continues.
// The device is the CPU version of one, a thread.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "run/checkpoint.h"
#include "run/staged_copy.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::TempDir;

// Its stream, and its allocations.
struct DeviceTwin {
  std::vector<size_t> asked = {};
  Stream* stream = nullptr;  // owned by `staged`
  std::shared_ptr<StagedCopy> staged;

  DeviceTwin() {
    auto made = make_thread_stream("twin");
    stream = made.get();
    staged = std::make_shared<StagedCopy>(at::kCPU, std::move(made), [this](size_t bytes) {
      asked.push_back(bytes);
      return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
    });
  }
};

Checkpoint filled_checkpoint(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.position.step = step;
  const at::Tensor filter = at::arange(5 * 7 * 3 * 2).reshape({5, 7, 3, 2}) + step;
  checkpoint.model = {{"filter", filter.to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast)},
                      {"half", filter.to(at::kHalf)},
                      {"permuted", filter.permute({3, 1, 0, 2})},
                      {"none", at::empty({0, 3})},
                      {"count", at::full({}, step, at::kLong)}};
  checkpoint.optimizer = {{"filter.momentum", at::full({3, 5}, double(step))}};
  return checkpoint;
}

void expect_saved_copy(const CheckpointWriter::Outcome& outcome, int64_t step) {
  ASSERT_FALSE(outcome.error);
  const Checkpoint expected = filled_checkpoint(step),
                   read = read_checkpoint(Env::posix(), outcome.path);
  for (const auto& [found, wanted] :
       {std::pair{&read.model, &expected.model}, {&read.optimizer, &expected.optimizer}}) {
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : *found) by_name[name] = tensor;
    ASSERT_EQ(by_name.size(), wanted->size());
    for (const auto& [name, tensor] : *wanted) EXPECT_TRUE(by_name[name].equal(tensor)) << name;
  }
}

// The writer thread waits for the copies; later work of the stream comes after them.
TEST(StagedCopy, SavesTheStateThoughTrainingContinuesBeforeItIsCopied) {
  const TempDir dir;
  DeviceTwin twin;
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  CheckpointWriter writer(Env::posix(), store, twin.staged);
  for (const int64_t step : {5, 6}) {
    Checkpoint checkpoint = filled_checkpoint(step);
    std::promise<void> step_done;
    twin.stream->submit([done = step_done.get_future().share()] { done.wait(); });
    writer.start(checkpoint);
    for (auto* tensors : {&checkpoint.model, &checkpoint.optimizer})
      for (const auto& named : *tensors)
        twin.stream->submit([tensor = named.tensor] { tensor.fill_(-1); });
    EXPECT_TRUE(writer.busy());
    EXPECT_TRUE(list_checkpoints(Env::posix(), dir.path()).size() < size_t(step - 4));
    step_done.set_value();
    const auto outcome = writer.wait();
    ASSERT_TRUE(outcome);
    expect_saved_copy(*outcome, step);
  }
  EXPECT_EQ(twin.asked, std::vector<size_t>{StagedCopy::kSlab}) << "once for both saves";
}

TEST(StagedCopy, AllocatesSlabsAndASeparateOneForALargerTensor) {
  DeviceTwin twin;
  const int64_t half = int64_t(StagedCopy::kSlab) / 2;
  std::vector<at::Tensor> sources = {at::full({half - 100}, 1, at::kByte),
                                     at::full({25}, 2, at::kFloat), at::full({half}, 3, at::kByte),
                                     at::full({2 * half + 1}, 4, at::kByte)};
  std::vector<at::Tensor> targets(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) twin.staged->copy(sources[i], targets[i]);
  twin.staged->record();
  twin.staged->wait();
  for (size_t i = 0; i < sources.size(); ++i) EXPECT_TRUE(targets[i].equal(sources[i])) << i;
  ASSERT_EQ(twin.asked.size(), 3u);
  EXPECT_EQ(twin.asked[0], StagedCopy::kSlab);
  EXPECT_EQ(twin.asked[1], StagedCopy::kSlab);
  EXPECT_GE(twin.asked[2], StagedCopy::kSlab + 1);
  EXPECT_LE(twin.asked[2], StagedCopy::kSlab + 64);
  at::Tensor last;  // in the rest of the second slab
  twin.staged->copy(sources[1], last);
  EXPECT_EQ(twin.asked.size(), 3u);
  EXPECT_EQ(static_cast<std::byte*>(last.data_ptr()),
            static_cast<std::byte*>(targets[2].data_ptr()) + half);
}

TEST(StagedCopy, AFailedCopyIsAFailedSave) {
  const TempDir dir;
  DeviceTwin twin;
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  CheckpointWriter writer(Env::posix(), store, twin.staged);
  twin.stream->submit([] { throw std::runtime_error("the device is gone"); });
  writer.start(filled_checkpoint(7));
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->error);
  EXPECT_TRUE(list_checkpoints(Env::posix(), dir.path()).empty());
}

}  // namespace
}  // namespace saturate
