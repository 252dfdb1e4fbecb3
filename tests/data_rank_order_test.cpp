// The order of samples with several processes, compared with the rule of
// torch.utils.data.DistributedSampler, and across changes of the world size.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "saturate/data/loader.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

std::vector<uint32_t> identity(size_t size) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

TEST(RankOrder, PadAndDropEqualDistributedSampler) {
  const auto golden = nlohmann::json::parse(
      std::ifstream(testing::source_path("tests/goldens/reduce/sampler.json")));
  ASSERT_GT(golden.size(), 40u);
  for (const auto& one : golden) {
    const int world = one["world"];
    const Uneven uneven = one["drop_last"] ? Uneven::kDrop : Uneven::kPad;
    for (int rank = 0; rank < world; ++rank)
      EXPECT_EQ(rank_order(identity(one["size"]), size_t(3 * world), {rank, world, uneven}),
                one["ranks"][size_t(rank)].get<std::vector<uint32_t>>())
          << one["size"] << " samples, rank " << rank << " of " << world;
  }
}

TEST(RankOrder, JoinAssignsEverySampleOfAGlobalBatchOnce) {
  for (size_t size : {1u, 3u, 7u, 40u, 101u})
    for (int world = 1; world <= 8; ++world)
      for (size_t batch : {8u, 9u, 24u}) {
        std::vector<size_t> seen(size, 0);
        for (int rank = 0; rank < world; ++rank) {
          const size_t share = (batch + size_t(world) - 1 - size_t(rank)) / size_t(world);
          const auto own = rank_order(identity(size), batch, {rank, world, Uneven::kJoin});
          for (size_t i = 0; i < own.size(); ++i) {
            ++seen[own[i]];
            EXPECT_EQ(own[i] / batch, i / share) << "in the global batch of one process";
          }
        }
        EXPECT_EQ(seen, std::vector<size_t>(size, 1)) << world << " processes, batch " << batch;
      }
}

// The samples of batches [first, last) by batch, over all ranks of a world.
std::map<size_t, std::multiset<uint32_t>> batches_of(const Dataset& data, int world, size_t first,
                                                     size_t last) {
  std::map<size_t, std::multiset<uint32_t>> seen;
  for (int rank = 0; rank < world; ++rank) {
    LoaderOptions options;
    options.batch = 12;
    options.shard = {rank, world, Uneven::kJoin};
    options.seed = 5;
    AugmentOptions augment;
    augment.size = 8;
    Loader loader(data, options, augment);
    EXPECT_EQ(loader.batches(), 5u) << "the same for every world size";
    loader.start_epoch(2, first);
    Batch batch;
    for (size_t i = first; i < last && loader.next(batch); ++i) {
      for (const BatchSample& sample : batch.samples) seen[i].insert(sample.index);
      EXPECT_EQ(batch.global_batch, i == 4 ? 2u : 12u);
    }
  }
  return seen;
}

TEST(RankOrder, ContinuesWithAnotherWorldSizeInMidEpoch) {
  const auto data = open_dataset(Env::posix(), "synth:size=8,count=50");
  const auto whole = batches_of(*data, 1, 0, 5);
  ASSERT_EQ(whole.size(), 5u);
  for (int world : {2, 3, 4, 8}) {
    auto seen = batches_of(*data, world, 0, 2);
    for (const auto& [batch, samples] : batches_of(*data, 12 / world, 2, 5)) seen[batch] = samples;
    EXPECT_EQ(seen, whole) << world << " processes, then " << 12 / world;
  }
}

TEST(RankOrder, EveryBatchIsFullIfTheLastIsDropped) {
  const auto data = open_dataset(Env::posix(), "synth:size=8,count=50");
  constexpr int kWorld = 4;  // divides neither the samples nor the batch
  for (const Uneven uneven : {Uneven::kJoin, Uneven::kPad, Uneven::kDrop}) {
    std::vector<size_t> counts(5, 0);
    std::set<uint32_t> seen;
    for (int rank = 0; rank < kWorld; ++rank) {
      LoaderOptions options;
      options.batch = 9;
      options.drop_last = true;
      options.shard = {rank, kWorld, uneven};
      AugmentOptions augment;
      augment.size = 8;
      Loader loader(*data, options, augment);
      ASSERT_EQ(loader.batches(), counts.size());
      loader.start_epoch(1);
      Batch batch;
      for (size_t i = 0; loader.next(batch); ++i) {
        ASSERT_LT(i, counts.size());
        EXPECT_EQ(batch.global_batch, 9u);
        counts[i] += batch.count();
        for (const BatchSample& sample : batch.samples) seen.insert(sample.index);
      }
    }
    EXPECT_EQ(counts, std::vector<size_t>(5, 9)) << int(uneven);
    EXPECT_EQ(seen.size(), 45u) << int(uneven);
  }
}

TEST(RankOrder, ARankWithoutASampleStillMakesTheStep) {
  const auto data = open_dataset(Env::posix(), "synth:size=8,count=14");
  LoaderOptions options;
  options.batch = 12;
  options.shard = {3, 4, Uneven::kJoin};
  AugmentOptions augment;
  augment.size = 8;
  Loader loader(*data, options, augment);
  loader.start_epoch(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.count(), 3u);
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.count(), 0u);
  EXPECT_EQ(batch.global_batch, 2u);
  EXPECT_FALSE(loader.next(batch));
  loader.start_epoch(0, 1);
  ASSERT_TRUE(loader.next(batch)) << "after a resume too";
  EXPECT_EQ(batch.count(), 0u);
  loader.start_epoch(0, 2);
  EXPECT_FALSE(loader.next(batch)) << "the epoch has ended";
}

}  // namespace
}  // namespace saturate
