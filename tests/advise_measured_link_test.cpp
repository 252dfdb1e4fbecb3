// The link of a run, as diagnose describes it.
#include <gtest/gtest.h>

#include "advise/measured_link.h"
#include "data/export.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::MemoryDataset;
using testing::StoreServer;
using testing::TempDir;

TEST(MeasuredLink, AddsWhatIsMeasuredAndTakesTheNetworksShareOfTheRun) {
  const TempDir folder;
  PackOptions packing;
  packing.out = "shard:" + (folder / "a.shard");
  std::vector<std::string> images(20, testing::noise_jpeg(32, 32, 1));
  images.resize(40, testing::noise_jpeg(64, 64, 1));
  pack_dataset(env(), MemoryDataset(images), packing);
  StoreServer server;
  server.put("/a.shard", testing::read_text(folder / "a.shard"));
  Recipe recipe;
  recipe.data.source = "shard:" + server.url("/a.shard");
  recipe.data.shuffle.mode = ShuffleMode::kBlock;
  const auto data = open_dataset(env(), recipe.data.source, recipe.data.store_options());
  MeasuredLink measured(env(), recipe, *data);
  PhaseTimes step;
  EXPECT_FALSE(measured.result(step)) << "nothing is measured";
  Sample sample;
  for (const size_t first : {0, 20}) {
    measured.begin();
    for (size_t i = first; i < first + 10; ++i) data->read(i, sample);
    measured.end();
    data->read(first + 10, sample);
  }
  step.seconds[size_t(Phase::kForward)] = 1;
  step.seconds[size_t(Phase::kWait)] = 3;
  step.network_wait = 1.5;
  const LinkUse link = measured.result(step).value();
  const double small = double(data->bytes(0)), large = double(data->bytes(39));
  EXPECT_NEAR(link.bytes_per_s / link.requests_per_s, (small + large) / 2, (large - small) / 4);
  EXPECT_TRUE(link.is_packed);
  EXPECT_FALSE(link.in_random_order);
  EXPECT_DOUBLE_EQ(link.network_share, 0.5);
  EXPECT_DOUBLE_EQ(link.most, 4);
  EXPECT_DOUBLE_EQ(run_speedup(link, INFINITY), 2) << "the other half of the wait is decoding";
  step.network_wait = 0;
  EXPECT_DOUBLE_EQ(run_speedup(measured.result(step).value(), INFINITY), 1);
}

}  // namespace
}  // namespace saturate
