// The share of images that a GPU decodes: counted by the feeder, in a run's records and summary.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "run/device_decoding.h"
#include "run/run_log.h"
#include "saturate/trainer.h"
#include "tests/packed_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::packing_options;

AugmentOptions crops(int size) {
  AugmentOptions augment;
  augment.size = size;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

void feed_epoch(Feeder& feeder, uint32_t epoch) {
  feeder.start_epoch(epoch);
  for (DeviceBatch batch; feeder.next(batch);) continue;
  feeder.stop();
}

class Decoding : public ::testing::Test {
 protected:
  testing::TempDir dir;
  const std::shared_ptr<const Dataset> shard = testing::mixed_shard(dir);
  Ledger ledger{Env::posix()};
};

TEST_F(Decoding, TheFeederCountsByWhatDecodes) {
  for (const Toggle copy : {Toggle::kOff, Toggle::kOn})
    for (const bool packs : {true, false}) {
      Loader loader(*shard, packing_options(packs), crops(96));
      Feeder feeder(loader, at::kCPU, true, ledger, crops(96));
      if (copy == Toggle::kOn) feeder.use_pipeline({{.copy = copy}});
      for (int64_t epochs = 1; epochs <= 2; ++epochs) {
        feed_epoch(feeder, uint32_t(epochs));
        const auto [on_device, by_loader] = feeder.decoded();
        const int64_t jpegs = epochs * int64_t(testing::kJpegsInSegments);
        EXPECT_EQ(on_device + by_loader, packs ? epochs * int64_t(shard->size()) : 0);
        EXPECT_EQ(on_device > jpegs / 2, packs);
        EXPECT_LE(on_device, jpegs);
      }
    }
}

// A loader that decodes a folder for the first time makes the index of it.
TEST_F(Decoding, RecordsHaveTheShareOfTheirEpochAndOfTheRun) {
  const auto files = open_dataset(Env::posix(), "folder:" + (dir / "set"));
  Loader loader(*files, packing_options(true), crops(96));
  Feeder feeder(loader, at::kCPU, true, ledger, crops(96));
  RunLog::Plan plan{dir.path(), Progress::Style::kSilent, /*epoch_steps=*/5, 10, RunPosition()};
  plan.observers.push_back({make_decoding_observer(feeder)});
  RunLog log(Env::posix(), testing::small_recipe("[watch]\ntensorboard = false\n"), plan, ledger);
  log.begin();
  RunPosition position;
  for (; position.epoch < 2; ++position.epoch) {
    feed_epoch(feeder, uint32_t(position.epoch));
    log.epoch(position, {23, 1.5, {}}, 0.1);
  }
  const std::optional<Evaluation> last;
  log.evaluation({position, {10, {23, 1.5, {}}, {}}, /*counts=*/true}, 1);
  log.end({position, RunEnd::kDone, last});

  std::istringstream lines(testing::read_text(dir / "metrics.jsonl"));
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].at("gpu_decoded"), 0);
  const auto packed = double(feeder.decoded().on_device);
  EXPECT_GT(packed, 0);
  EXPECT_DOUBLE_EQ(records[1].at("gpu_decoded"), packed / 23);
  EXPECT_FALSE(records[2].contains("gpu_decoded"));
  EXPECT_DOUBLE_EQ(records[3].at("gpu_decoded"), packed / 46);
}

TEST(DecodingLine, SaysWhyFewAreDecodedOnTheGpuAndWhatHelps) {
  Recipe recipe;
  recipe.augment.size = 224;
  recipe.data.source = "folder:/my photos";
  const auto line = [&](int64_t on_device, int64_t by_loader) {
    return decoding_line({on_device, by_loader}, recipe);
  };
  const auto has = [&](const std::string& text) {
    return line(40, 60).find(text) != std::string::npos;
  };
  EXPECT_EQ(line(0, 0), "");
  EXPECT_EQ(line(80, 0), "the GPU decoded 100.0 % of 80 images");
  EXPECT_EQ(line(90, 10), "the GPU decoded 90.0 % of 100 images, loader threads the others");
  EXPECT_EQ(line(40, 60),
            "the GPU decoded 40.0 % of 100 images, loader threads the others: these images had "
            "neither segments nor an entry in data.index, which a baseline JPEG without restart "
            "markers gets when it is first decoded. `saturate data index 'folder:/my photos'` "
            "makes all entries beforehand, and `saturate data pack` writes segments");
  EXPECT_TRUE(line(9996, 4).starts_with("the GPU decoded 99.9 % of")) << line(9996, 4);
  recipe.data.index = {IndexMode::kFile, "/a/b.points"};
  EXPECT_TRUE(has("photos' --out /a/b.points`")) << line(40, 60);
  recipe.data.index = {IndexMode::kOff, ""};
  EXPECT_TRUE(has("Set data.index=auto. `saturate data index")) << line(40, 60);
  recipe.augment.size = 64;
  EXPECT_TRUE(has("data.index=auto") && has("augment.size 64")) << line(40, 60);
  recipe.data.source = "shard:a.shard";
  EXPECT_TRUE(has("augment.size") && !has("data index")) << line(40, 60);
  recipe.augment.size = 224;
  recipe.data.source = "own:";
  EXPECT_TRUE(has("data pack") && !has("data index")) << line(40, 60);
  recipe.data.source = "tar:https://host/a.tar?X-Signature=secret";
  EXPECT_FALSE(has("secret")) << line(40, 60);
  recipe.augment.crop = CropKind::kLetterbox;
  EXPECT_TRUE(has("augment.crop=letterbox") && !has("data index")) << line(40, 60);
}

TEST(DecodingLine, IsInTheSummary) {
  TrainResult result;
  EXPECT_EQ(format_summary(result).find("data.decode_device"), std::string::npos);
  result.decoding = "the GPU decoded 100.0 % of 80 images";
  EXPECT_NE(format_summary(result).find("\ndata.decode_device: " + result.decoding + "\n"),
            std::string::npos)
      << format_summary(result);
}

}  // namespace
}  // namespace saturate
