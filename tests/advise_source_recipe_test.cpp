// The recipe that `saturate train SOURCE` makes.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "advise/source_recipe.h"
#include "saturate/data/recipe.h"
#include "tests/array_testing.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

// `count` images of `side` pixels in each of two classes.
void write_photos(const std::string& root, int count, int side) {
  for (const char* name : {"cat", "dog"})
    for (int i = 0; i < count; ++i)
      write_file(root + "/" + name + "/" + std::to_string(i) + ".jpg",
                 testing::noise_jpeg(side + i % 3, side, uint64_t(i)));
}

Recipe made_for(const std::string& source, bool gpu = false) {
  return parse_recipe("", source, settings_for_source(Env::posix(), source, gpu));
}

TEST(SourceRecipe, EveryFifthOfFewImagesIsHeldOut) {
  const TempDir dir;
  write_photos(dir / "photos", 20, 40);
  const Recipe recipe = made_for(dir / "photos");
  EXPECT_EQ(recipe.data.source, "split:train,1/5," + (dir / "photos"));
  EXPECT_EQ(recipe.data.eval_source, "split:held,1/5," + (dir / "photos"));
  EXPECT_EQ(recipe.model.name, "resnet9");
  EXPECT_EQ(recipe.augment.size, 40);
  EXPECT_EQ(recipe.train.batch, 8);
  EXPECT_EQ(recipe.train.epochs, 100);
  EXPECT_EQ(recipe.precision.mode, PrecisionMode::kAuto);
}

TEST(SourceRecipe, SplitFoldersAreFoundInAnyCase) {
  const TempDir dir;
  write_photos(dir / "set/Train", 6, 200);
  write_photos(dir / "set/test", 2, 200);
  EXPECT_EQ(made_for(dir / "set").data.eval_source, dir / "set/test");
  write_photos(dir / "set/VAL", 2, 200);
  const Recipe recipe = made_for((dir / "set") + "/");
  EXPECT_EQ(recipe.data.source, dir / "set/Train");
  EXPECT_EQ(recipe.data.eval_source, dir / "set/VAL") << "val is preferred to test";
  std::filesystem::remove_all(dir / "set/test");
  std::filesystem::remove_all(dir / "set/VAL");
  EXPECT_EQ(made_for(dir / "set").data.eval_source, "split:held,1/5," + (dir / "set/Train"));
}

TEST(SourceRecipe, PhotographsGetCropsAndLargerOnesOnAGpu) {
  const TempDir dir;
  write_photos(dir / "photos", 10, 300);
  for (const bool gpu : {false, true}) {
    const Recipe recipe = made_for(dir / "photos", gpu);
    EXPECT_EQ(recipe.model.name, "resnet18");
    EXPECT_EQ(recipe.augment.crop, CropKind::kRandomResized);
    EXPECT_EQ(recipe.augment.size, gpu ? 224 : 128);
  }
}

// A step needs at least two images, and a class needs two to hold one out.
TEST(SourceRecipe, TinyFoldersTrainOnAllImages) {
  const TempDir dir;
  write_photos(dir / "two", 1, 32);
  const Recipe two = made_for(dir / "two");
  EXPECT_EQ(two.data.source, dir / "two");
  EXPECT_EQ(two.data.eval_source, "");
  EXPECT_EQ(two.train.batch, 2);
  for (int count = 2; count < 20; ++count) {
    const std::string folder = dir / ("photos" + std::to_string(count));
    write_photos(folder, count, 32);
    const Recipe recipe = made_for(folder);
    const size_t train = open_dataset(Env::posix(), recipe.data.source)->size();
    EXPECT_LE(size_t(recipe.train.batch), train) << count << "a full batch in each epoch";
    EXPECT_GE(open_dataset(Env::posix(), recipe.data.eval_source)->size(), 1u);
  }
}

TEST(SourceRecipe, MoreImagesGetFewerEpochsAndLargerBatches) {
  const Recipe few = made_for("synth:size=32,count=1000"), many = made_for("synth:count=60000");
  EXPECT_EQ(few.data.eval_source, "split:held,1/5,synth:size=32,count=1000");
  EXPECT_EQ(many.data.eval_source, "split:held,1/10,synth:count=60000");
  EXPECT_GT(few.train.epochs, many.train.epochs);
  EXPECT_LT(few.train.batch, many.train.batch);
  EXPECT_EQ(many.train.batch, 128);
}

TEST(SourceRecipe, TheUsersSettingsAffectTheOthers) {
  const TempDir dir;
  write_photos(dir / "photos", 20, 40);
  const std::vector<std::string> overrides = {"data.eval_source=others", "train.epochs=2",
                                              "train.device=cpu"};
  auto settings = settings_for_source(Env::posix(), dir / "photos", true, overrides);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  const Recipe recipe = parse_recipe("", "test", settings);
  EXPECT_EQ(recipe.data.source, dir / "photos") << "no image is held out";
  EXPECT_LT(recipe.schedule.warmup_epochs, 2);
  EXPECT_EQ(recipe.model.width, 0.5) << "the width for a CPU";
}

TEST(SourceRecipe, NumbersThatCouldBeClassesAreTrainedOnAsTheUserSays) {
  const TempDir dir;
  std::vector<float> x(40);
  std::vector<int32_t> y(20);
  for (int i = 0; i < 20; ++i) y[size_t(i)] = i * 3;
  write_file(dir / "x.npy", testing::npy("<f4", "20, 2", testing::raw(x)));
  write_file(dir / "y.npy", testing::npy("<i4", "20,", testing::raw(y)));
  const std::string source = "npy:" + dir.path();
  EXPECT_EQ(made_for(source).train.label_smoothing, 0.1);
  const std::vector<std::string> overrides = {"train.task=regress"};
  auto settings = settings_for_source(Env::posix(), source, false, overrides);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  const Recipe recipe = parse_recipe("", "test", settings);
  EXPECT_EQ(recipe.train.label_smoothing, 0);
  EXPECT_FALSE(recipe.data.eval_source.empty()) << "held out, without two of each number";
}

TEST(SourceRecipe, MasksAreSegmented) {
  const Recipe recipe = made_for("synth:size=64,count=200,masks=true");
  EXPECT_EQ(recipe.train.task, TaskKind::kSegment);
  EXPECT_EQ(recipe.model.name, "unet");
}

TEST(SourceRecipe, TokensGetALanguageModel) {
  const Recipe recipe = made_for("synth-text:count=200");
  EXPECT_EQ(recipe.model.name, "gpt_tiny");
  EXPECT_EQ(recipe.data.eval_source, "split:held,1/5,synth-text:count=200");
  EXPECT_EQ(made_for("synth-table:count=200").model.name, "mlp");
}

TEST(SourceRecipe, SignalsOfVaryingLengthGetANetworkThatTakesThem) {
  const TempDir dir;
  testing::ZipText zip(/*deflated=*/false);
  std::vector<int64_t> lengths, classes;
  for (int64_t i = 0; i < 200; ++i) {
    lengths.push_back(1 + i % 9);
    classes.push_back(i % 2);
  }
  zip.add("x.npy", testing::npy("<f4", "200, 9, 2", testing::raw(std::vector<float>(3600, 1))));
  zip.add("n.npy", testing::npy("<i8", "200,", testing::raw(lengths)));
  zip.add("y.npy", testing::npy("<i8", "200,", testing::raw(classes)));
  testing::write_file(dir / "signals.npz", zip.text());
  EXPECT_EQ(made_for("npz:" + (dir / "signals.npz") + ",lengths=n").model.name, "resnet18_1d");
  testing::ZipText texts(/*deflated=*/false);
  for (int64_t& each : lengths) ++each;
  texts.add("x.npy", testing::npy("<i8", "200, 10", testing::raw(std::vector<int64_t>(2000, 1))));
  texts.add("n.npy", testing::npy("<i8", "200,", testing::raw(lengths)));
  testing::write_file(dir / "texts.npz", texts.text());
  EXPECT_EQ(made_for("npz:" + (dir / "texts.npz") + ",lengths=n,vocabulary=9").model.name,
            "gpt_tiny");
}

TEST(SourceRecipe, SourcesThatCannotBeTrainedOnAreNamed) {
  const TempDir dir;
  write_photos(dir / "one", 3, 20);
  std::filesystem::remove_all(dir / "one/dog");
  const Error single = error_of([&] { made_for(dir / "one"); });
  EXPECT_EQ(single.kind(), ErrorKind::kData);
  EXPECT_NE(single.reason().find("the same class"), std::string::npos);
  write_file(dir / "run/recipe.toml", "seed = 1\n");
  const Error run = error_of([&] { made_for(dir / "run"); });
  EXPECT_EQ(run.kind(), ErrorKind::kUsage);
  EXPECT_NE(run.remedy().find("--resume"), std::string::npos);
  write_photos(dir / "broken", 3, 20);
  for (const char* name : {"cat/0.jpg", "cat/1.jpg", "dog/2.jpg"})
    write_file(dir / "broken/" + name, "no image");
  EXPECT_EQ(made_for(dir / "broken").augment.size, 20) << "the readable images decide";
}

TEST(SourceRecipe, LabelledVolumesGetASegmenterOfVolumes) {
  const Recipe recipe = made_for("synth-volume:size=16,count=40");
  EXPECT_EQ(recipe.model.name, "unet3d");
  EXPECT_EQ(recipe.train.task, TaskKind::kSegment);
}

TEST(SourceRecipe, ARecipeFileIsNotASource) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "photos");
  Env& env = Env::posix();
  EXPECT_TRUE(names_source(env, dir / "photos"));
  EXPECT_TRUE(names_source(env, "photos.tar"));
  EXPECT_TRUE(names_source(env, "folder:photos"));
  write_photos(dir / "more", 1, 20);
  write_file(dir / "data_batch_1.bin", "x");
  write_file(dir / "recipe", "[data]\nsource = \"synth:\"\n");
  for (const std::string source : {"houses.csv,target=price", "houses.tsv", "photos.tgz",
                                   "https://h/x.shard?sig=a", "s3://b/x/", "folder:https://h/a"})
    EXPECT_TRUE(names_source(env, source)) << source;
  EXPECT_TRUE(names_source(env, (dir / "more") + ",classes=21"));
  EXPECT_TRUE(names_source(env, dir / "data_batch_1.bin"));
  EXPECT_FALSE(names_source(env, dir / "recipe"));
  EXPECT_FALSE(names_source(env, "recipes/demo.toml"));
  EXPECT_FALSE(names_source(env, "missing"));
  EXPECT_FALSE(names_source(env, "/dev/stdin"));
}

TEST(SourceRecipe, WithOneImagePerClassAllAreTrainedOn) {
  const std::string photos = testing::shared_path("data/imagenet-400");
  if (!std::filesystem::exists(photos)) GTEST_SKIP() << "no photographs at " << photos;
  const Recipe recipe = made_for(photos);
  EXPECT_EQ(recipe.data.source, photos);
  EXPECT_EQ(recipe.data.eval_source, "");
  EXPECT_EQ(recipe.augment.size, 128);
  EXPECT_EQ(recipe.data.decode, DecodeMode::kFast);
}

}  // namespace
}  // namespace saturate
