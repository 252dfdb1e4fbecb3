// Batches split into micro-batches of one image; see run_ranks_test.cpp for runs of them.
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "run/single_image.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::small_recipe;

int64_t fewest_of(int batch, size_t images, const Sharing& sharing, int accumulate = 1,
                  bool sync_bn = false) {
  Recipe recipe = small_recipe();
  recipe.train.batch = batch;
  recipe.train.accumulate = accumulate;
  recipe.distributed.sync_bn = sync_bn;
  return fewest_together(recipe, images, sharing);
}

TEST(SingleImage, CountsTheImagesOfEveryProcessMicroBatchAndReplica) {
  const Sharing one, two{{0, 2, Uneven::kJoin}}, four{{0, 4, Uneven::kJoin}};
  EXPECT_EQ(fewest_of(25, 100, one), 25);
  EXPECT_EQ(fewest_of(99, 100, one), 1);
  EXPECT_EQ(fewest_of(200, 100, one), 100) << "no batch is full";
  EXPECT_EQ(fewest_of(4, 100, one, 4), 1);
  EXPECT_EQ(fewest_of(19, 95, one, 10), 1) << "nineteen in ten micro-batches: of two and of one";
  EXPECT_EQ(fewest_of(4, 100, two), 2);
  EXPECT_EQ(fewest_of(3, 99, two), 1);
  EXPECT_EQ(fewest_of(3, 99, two, 1, true), 3) << "over all processes";
  EXPECT_EQ(fewest_of(25, 103, two), 1) << "three at last: two and one";
  EXPECT_EQ(fewest_of(25, 101, two, 1, true), 1);
  EXPECT_EQ(fewest_of(4, 100, two, 2), 1) << "two micro-batches of two images over two processes";
  EXPECT_EQ(fewest_of(4, 100, two, 2, true), 2);
  EXPECT_EQ(fewest_of(10, 100, four, 2), 1) << "three images in micro-batches of two";
  EXPECT_EQ(fewest_of(8, 104, {{0, 2, Uneven::kPad}}), 4);
  EXPECT_EQ(fewest_of(25, 101, {{0, 2, Uneven::kPad}}), 1) << "two at last, one each";
  EXPECT_EQ(fewest_of(25, 101, {{0, 2, Uneven::kDrop}}), 12);
  EXPECT_EQ(fewest_of(5, 100, {{}, 2}), 2);
  EXPECT_EQ(fewest_of(3, 99, {{}, 2}), 1) << "chunks of two and of one";
  Recipe dropping = small_recipe();
  dropping.train.batch = 99;
  dropping.train.drop_last = true;
  EXPECT_EQ(fewest_together(dropping, 100, one), 99);
}

TEST(SingleImage, TheTrialChangesNeitherModelNorRandomState) {
  Recipe recipe = small_recipe();
  recipe.train.batch = 1;
  recipe.model.name = "simple_cnn";
  recipe.augment.size = 8;
  recipe.precision.mode = PrecisionMode::kFp32;
  const auto model = make_model(recipe.model, {3, 8, Env::posix()});
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : model->buffers()) before.push_back(tensor.clone());
  at::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(1);
  require_no_single_image(*model, recipe, 10, {},
                          ModelInput{recipe.model.classes, recipe.augment.size, Env::posix()},
                          at::kCPU);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
  const auto after = model->buffers();
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_TRUE(at::equal(after[i].tensor, before[i])) << after[i].name;
}

}  // namespace
}  // namespace saturate
