// Training data in a store that were replaced: between two ranks, and before a run is resumed.
#include <gtest/gtest.h>

#include <memory>

#include "run/checkpoint.h"
#include "run/same_run.h"
#include "tests/data_testing.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

// Images that were opened from objects of a store.
class StoredImages : public testing::MemoryDataset {
 public:
  explicit StoredImages(std::vector<ObjectVersion> versions)
      : MemoryDataset(files()), versions_(std::move(versions)) {}
  std::vector<ObjectVersion> versions() const override { return versions_; }

 private:
  static std::vector<std::string> files() {
    std::vector<std::string> all;
    for (uint64_t i = 0; i < 50; ++i) all.push_back(testing::noise_jpeg(16, 16, i));
    return all;
  }
  const std::vector<ObjectVersion> versions_;
};

TEST(RunVersions, ResumingRefusesDataThatWereReplacedUnlessAllowed) {
  const TempDir folder;
  const std::string run = folder / "run";
  Recipe recipe = small_recipe();
  recipe.augment.size = 16;
  TrainerOptions options = saving_options(run);
  options.dataset = std::make_shared<StoredImages>(
      std::vector<ObjectVersion>{{"s3://b/0.shard", "aa"}, {"s3://b/1.shard", "bb"}});
  Trainer(Env::posix(), recipe, options).run();
  const Checkpoint saved =
      find_checkpoint(Env::posix(), run, [](const std::string& text) { ADD_FAILURE() << text; });
  ASSERT_EQ(saved.objects.size(), 2u);
  EXPECT_EQ(saved.objects[1].name, "s3://b/1.shard");
  EXPECT_EQ(saved.objects[1].digest, "bb");

  options.resume = run;
  recipe.train.epochs = 3;
  const auto resume_with = [&](const std::vector<ObjectVersion>& versions) {
    options.dataset = std::make_shared<StoredImages>(versions);
    return Trainer(Env::posix(), recipe, options).run().steps;
  };
  const std::vector<ObjectVersion> replaced{{"s3://b/0.shard", "aa"}, {"s3://b/1.shard", "cc"}};
  const Error error = error_of([&] { resume_with(replaced); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), "s3://b/1.shard");
  EXPECT_NE(error.reason().find("replaced"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find("--allow-changed-data"), std::string::npos) << error.what();
  EXPECT_NE(error.remedy().find("model.weights"), std::string::npos) << error.what();
  EXPECT_EQ(resume_with({{"/disk/0.shard", "dd"}}), 6) << "a copy elsewhere is not compared";
  options.changed_data = true;
  recipe.train.epochs = 4;
  EXPECT_EQ(resume_with({{"/disk/0.shard", "ee"}}), 8);
}

TEST(RunVersions, RanksHaveOpenedTheSameObjects) {
  const std::string first = text_of({{"s3://b/a b", "aa"}, {"s3://b/c", "cc"}});
  require_same_objects({first, first, "", text_of({{"s3://other/c", "dd"}})});
  const Error error = error_of([&] {
    require_same_objects({first, "", text_of({{"s3://b/a b", "bb"}})});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "s3://b/a b");
  EXPECT_NE(error.reason().find("ranks 0 and 2"), std::string::npos) << error.what();
}

TEST(RunVersions, RanksCompareTheirObjectsBeforeTheFirstStep) {
  const TempDir folder;
  Recipe recipe = small_recipe();
  recipe.augment.size = 16;
  const auto train = [&](const std::string& second) {
    testing::run_ranks(2, [&](Group& group) {
      TrainerOptions own = testing::quiet_options(folder / "run");
      own.group = std::shared_ptr<Group>(&group, [](Group*) {});
      own.dataset = std::make_shared<StoredImages>(
          std::vector<ObjectVersion>{{"s3://b/0.shard", group.rank() == 0 ? "aa" : second}});
      EXPECT_EQ(Trainer(Env::posix(), recipe, own).run().steps, 4);
    });
  };
  train("aa");
  const Error error = error_of([&] { train("bb"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "s3://b/0.shard");
}

}  // namespace
}  // namespace saturate
