// Segmentation with the command: recipes/segment.toml, shortened, and folders of masks.
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

constexpr const char* kHeldOut =
    "synth:size=16,count=40,classes=3,difficulty=0.1,split=test,masks=true";

class SegmentCommand : public ::testing::Test {
 protected:
  // The shipped recipe, on fewer and smaller images.
  CommandResult train(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = {
        "data.source=synth:size=16,count=160,classes=3,difficulty=0.1,masks=true",
        std::string("data.eval_source=") + kHeldOut,
        "model.width=0.0625",
        "train.epochs=3",
        "train.threads=1",
        "data.threads=1",
        "train.device=cpu",
        "watch.every=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    std::string arguments =
        "train '" + source_path("recipes/segment.toml") + "' --quiet --out " + (dir / name);
    for (const std::string& text : settings) arguments += " --set '" + text + "'";
    return run_saturate(arguments);
  }
  std::vector<double> overlaps(const std::string& name, const std::string& kind) const {
    std::vector<double> found;
    for (const auto& record : read_metrics(dir / name))
      if (record["kind"] == kind) found.push_back(record["mean_iou"]);
    return found;
  }

  TempDir dir;
};

TEST_F(SegmentCommand, TheRecipeLearnsAndEvalPrintsTheRunsMetrics) {
  const CommandResult trained = train("run", {"train.epochs=8"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("mean IoU"), std::string::npos) << trained.out;
  const auto overlap = overlaps("run", "eval");
  ASSERT_FALSE(overlap.empty());
  EXPECT_GT(overlap.back(), overlap.front());
  const CommandResult evaluated =
      run_saturate("eval " + (dir / "run") + " --data '" + kHeldOut + "'");
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const auto at = evaluated.out.find("mean IoU");
  ASSERT_NE(at, std::string::npos) << evaluated.out;
  EXPECT_NEAR(std::stod(evaluated.out.substr(at + 8)), overlap.back(), 1e-4);
}

TEST_F(SegmentCommand, AResumedRunEqualsTheUninterruptedOne) {
  ASSERT_EQ(train("whole").exit_code, 0);
  ASSERT_EQ(train("cut", {"checkpoint.keep_best=false", "debug.off=background"}).exit_code, 0);
  remove_checkpoints(dir / "cut", {10, 15});
  const CommandResult resumed = run_saturate("train --quiet --resume " + (dir / "cut"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_losses(dir / "cut", dir / "whole", "step");
  EXPECT_EQ(overlaps("cut", "step"), overlaps("whole", "step"));
  EXPECT_EQ(overlaps("cut", "eval").back(), overlaps("whole", "eval").back());
}

TEST_F(SegmentCommand, PipelinedEqualsSerial) {
  const std::vector<std::string> frozen = {"optimizer.freeze=[\"encoder.*\"]",
                                           "optimizer.freeze_statistics=true"};
  auto piped = frozen;
  for (const char* stage : {"copy", "augment", "encoder"})
    piped.push_back("pipeline." + std::string(stage) + "=true");
  piped.push_back("debug.checks=streams");
  ASSERT_EQ(train("serial", frozen).exit_code, 0);
  const CommandResult result = train("piped", piped);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses(dir / "piped", "step").size(), 15u);
  expect_same_losses(dir / "piped", dir / "serial", "step");
  EXPECT_EQ(overlaps("piped", "eval"), overlaps("serial", "eval"));
  const auto weights = [&](const std::string& name) {
    return find_checkpoint(Env::posix(), dir / name, [](const std::string&) {}).model;
  };
  const auto a = weights("serial"), b = weights("piped");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].tensor.equal(b[i].tensor)) << a[i].name;
}

// Eight images of 16 x 16 and their masks, one of which may have another size.
void write_folder(const std::string& root, int odd_width) {
  write_file(root + "/classes.txt", "sky\nground\nroad\n");
  for (int i = 0; i < 8; ++i) {
    const int width = i == 5 ? odd_width : 16;
    std::vector<uint8_t> numbers(size_t(width) * 16);
    for (size_t p = 0; p < numbers.size(); ++p) numbers[p] = uint8_t(p / 32 % 3);
    const std::string name = "image" + std::to_string(i);
    write_file(root + "/images/" + name + ".jpg", noise_jpeg(16, 16, uint64_t(i)));
    write_file(root + "/masks/" + name + ".png", to_text(encode_png(numbers.data(), width, 16, 1)));
  }
}

TEST_F(SegmentCommand, AMaskOfAnotherSizeThanItsImageIsOneError) {
  const std::vector<std::string> settings = {"data.source=masks:" + (dir / "folder"),
                                             "data.eval_source=", "train.monitor=train_loss",
                                             "train.batch=4"};
  write_folder(dir / "folder", 16);
  EXPECT_EQ(train("sound", settings).exit_code, 0);
  write_folder(dir / "folder", 12);
  expect_failed_run(train("odd", settings), 3, {"12 x 16", "16 x 16", "image5"});
}

}  // namespace
}  // namespace saturate::testing
