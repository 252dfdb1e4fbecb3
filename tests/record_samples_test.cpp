// Images that a run keeps, histograms, and TensorBoard's reading of both.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "record/sample_gallery.h"
#include "record/sinks.h"
#include "report/run_extras.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/paths.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::quiet_options;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

json json_of(const std::string& path) {
  return json::parse(read_text(path));
}

AugmentOptions halves() {
  AugmentOptions augment;
  augment.mean = {0.5, 0.5, 0.5};
  augment.std = {0.25, 0.25, 0.25};
  return augment;
}

// Images of one colour each: value (i * 10) of 255 in every channel, normalised.
DeviceBatch gallery_batch(int64_t count, int64_t size = 4) {
  DeviceBatch batch;
  batch.images = at::zeros({count, 3, size, size});
  for (int64_t i = 0; i < count; ++i) {
    batch.images.select(0, i).fill_((double(i) * 10 / 255 - 0.5) / 0.25);
    batch.names.push_back("sample " + std::to_string(i));
  }
  batch.labels = at::zeros({count}, at::kLong);
  return batch;
}

class Gallery : public ::testing::Test {
 protected:
  SampleGallery gallery_of(int count) {
    return SampleGallery(Env::posix(), dir.path(), {"cat", "<b>dog", "eel"}, halves(), count);
  }
  Image decoded(const std::string& file) {
    const std::string bytes = read_text(dir / ("samples/" + file));
    Image image;
    Decoder().decode(std::as_bytes(std::span(bytes)), file, image);
    return image;
  }
  TempDir dir;
};

TEST_F(Gallery, TrainingImagesAreThePixelsBeforeNormalisation) {
  auto gallery = gallery_of(3);
  DeviceBatch batch = gallery_batch(5);
  batch.labels.select(0, 1).fill_(2);
  const auto tagged = gallery.write_training(7, batch);
  ASSERT_EQ(tagged.size(), 3u);
  EXPECT_EQ(tagged[2].tag, "samples/2");
  EXPECT_EQ(tagged[2].width, 4);
  const json kept = json_of(dir / "samples/training.json");
  EXPECT_EQ(kept["step"], 7);
  ASSERT_EQ(kept["images"].size(), 3u);
  EXPECT_EQ(kept["images"][1]["labels"], json::parse(R"([{"class": "eel", "weight": 1.0}])"));
  for (int i = 0; i < 3; ++i) {
    const Image image = decoded(kept["images"][size_t(i)]["file"]);
    EXPECT_EQ(image.width, 4);
    for (const uint8_t value : image.pixels) EXPECT_EQ(value, i * 10);
  }
}

TEST_F(Gallery, MixedImagesHaveBothLabels) {
  auto gallery = gallery_of(1);
  DeviceBatch batch = gallery_batch(2);
  batch.mixed_labels = at::full({2}, 1, at::kLong);
  batch.lambda = 0.75;
  gallery.write_training(1, batch);
  std::vector<std::string> warnings;
  const auto read = read_kept_images(Env::posix(), dir.path(), "training.json", warnings);
  ASSERT_TRUE(read && read->images.size() == 1);
  EXPECT_EQ(read->images[0].title, "cat 75 %, <b>dog 25 %");
  EXPECT_TRUE(read->images[0].uri.starts_with("data:image/png;base64,iVBORw0KGgo"));
}

TEST_F(Gallery, TheWorstMistakesOfAllBatchesComeFirst) {
  auto gallery = gallery_of(3);
  // Logits (0, x, 0): the label is 0, so x > 0 is a mistake and its loss grows with x.
  const auto logits_of = [](std::vector<float> x) {
    at::Tensor logits = at::zeros({int64_t(x.size()), 3});
    for (size_t i = 0; i < x.size(); ++i) logits.select(0, int64_t(i)).select(0, 1).fill_(x[i]);
    return logits;
  };
  gallery.begin_evaluation();
  gallery.see(gallery_batch(2), logits_of({9, 9}));
  gallery.begin_evaluation();  // removes the previous ones
  const at::Tensor first = logits_of({1, 5, -1, 2});
  gallery.see(gallery_batch(4), first);
  gallery.see(gallery_batch(3), logits_of({3, -2, 0.5}));
  gallery.write_mistakes(40);
  const json found = json_of(dir / "samples/mistakes.json");
  EXPECT_EQ(found["step"], 40);
  ASSERT_EQ(found["images"].size(), 3u);
  const double loss =
      at::cross_entropy_loss(first.narrow(0, 1, 1), at::zeros({1}, at::kLong)).item<double>();
  EXPECT_NEAR(found["images"][0]["loss"], loss, 1e-6);
  EXPECT_NEAR(found["images"][0]["probability"], std::exp(5) / (std::exp(5) + 2), 1e-6);
  EXPECT_EQ(found["images"][0]["class"], "cat");
  EXPECT_EQ(found["images"][0]["predicted"], "<b>dog");
  EXPECT_EQ(found["images"][0]["name"], "sample 1");
  EXPECT_EQ(found["images"][1]["name"], "sample 0");
  EXPECT_EQ(found["images"][2]["name"], "sample 3");
  EXPECT_EQ(decoded(found["images"][0]["file"]).pixels[0], 10);
}

TEST_F(Gallery, OnlyTheListOfMistakesWaitsForTheDisk) {
  FaultEnv files(Env::posix());
  SampleGallery gallery(files, dir.path(), {"cat", "dog", "eel"}, halves(), 3);
  at::Tensor logits = at::zeros({3, 3});
  logits.select(1, 1).fill_(2);
  gallery.see(gallery_batch(3), logits);
  gallery.write_mistakes(40);
  EXPECT_EQ(json_of(dir / "samples/mistakes.json")["images"].size(), 3u);
  EXPECT_EQ(files.count({FileOp::kSync, ""}), 1u);
  EXPECT_EQ(files.count({FileOp::kSyncDirectory, ""}), 1u);
}

TEST_F(Gallery, LargeImagesAreJpegs) {
  auto gallery = gallery_of(1);
  gallery.write_training(1, gallery_batch(1, 80));
  EXPECT_EQ(json_of(dir / "samples/training.json")["images"][0]["file"], "training-000.jpg");
  EXPECT_EQ(decoded("training-000.jpg").width, 80);
}

TEST_F(Gallery, AReportReadsOnlyTheRunsOwnFiles) {
  write_file(dir / "secret.png", "\x89PNG\r\n\x1a\nsecret");
  write_file(dir / "samples/script.png", "<script>");
  write_file(dir / "samples/fine-1.png", "\x89PNG\r\n\x1a\nfine");
  write_file(dir / "samples/training.json",
             R"({"step": "x", "images": [{"file": "../secret.png"}, {"file": "script.png"}, 7,
                 {"file": "fine-1.png", "labels": "none"}, {"labels": []}]})");
  std::vector<std::string> warnings;
  const auto read = read_kept_images(Env::posix(), dir.path(), "training.json", warnings);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->images.size(), 1u);
  EXPECT_EQ(read->images[0].uri, "data:image/png;base64,iVBORw0KGgpmaW5l");
  write_file(dir / "samples/mistakes.json", "{\"images\": [");
  EXPECT_FALSE(read_kept_images(Env::posix(), dir.path(), "mistakes.json", warnings));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("mistakes.json"), std::string::npos);
}

TEST(Histograms, CountEveryFiniteValueOnce) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto found =
      histograms_of("parameters", {{"w", at::tensor({0.0f, 1.0f, 1.0f, 0.5f, nan, 64.0f})},
                                   {"same", at::full({5}, 3.0)},
                                   {"none", at::Tensor()},
                                   {"bad", at::full({2}, nan)}});
  ASSERT_EQ(found.size(), 2u);
  const TaggedHistogram& w = found[0];
  EXPECT_EQ(w.tag, "parameters/w");
  EXPECT_EQ(w.min, 0);
  EXPECT_EQ(w.max, 64);
  EXPECT_EQ(w.count, 5);
  EXPECT_EQ(w.sum, 66.5);
  EXPECT_EQ(w.sum_of_squares, 1 + 1 + 0.25 + 4096);
  ASSERT_EQ(w.edges.size(), 64u);
  EXPECT_EQ(w.edges.back(), 64);
  EXPECT_EQ(w.counts[0], 4) << "an edge belongs to the bin below";
  EXPECT_EQ(w.counts[63], 1);
  EXPECT_EQ(found[1].counts[0], 5);
}

// ---- in a run -----------------------------------------------------------------------------------

Recipe kept_recipe() {
  return parse_recipe(
      "[data]\nsource = \"synth:size=16,count=100\"\neval_source = "
      "\"synth:size=16,count=50,split=test\"\nthreads = 1\n[augment]\nflip = 0.5\n[model]\n"
      "name = \"mlp\"\n[train]\nbatch = 25\nepochs = 1\nthreads = 1\ndevice = \"cpu\"\n[watch]\n"
      "samples = 4\nhistograms = 2\n",
      "test");
}

TEST(RunSamples, SamplesAndMistakesAreInTheRunsFolder) {
  const TempDir dir;
  Recipe recipe = kept_recipe();
  recipe.optimizer.lr = 0;  // with its initial weights it is wrong about most images
  const TrainResult result = Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
  ASSERT_TRUE(result.eval);
  ASSERT_LT(*result.eval->value("accuracy"), 0.9) << "or this shows nothing";
  EXPECT_EQ(json_of(dir / "samples/training.json")["images"].size(), 4u);
  const json mistakes = json_of(dir / "samples/mistakes.json");
  EXPECT_EQ(mistakes["step"], 4);
  ASSERT_EQ(mistakes["images"].size(), 4u);
  double before = std::numeric_limits<double>::infinity();
  for (const auto& mistake : mistakes["images"]) {
    EXPECT_NE(mistake["class"], mistake["predicted"]);
    EXPECT_NE(mistake["name"], "");
    EXPECT_LE(mistake["loss"], before);
    before = mistake["loss"];
  }
}

TEST(RunSamples, NoneAreWrittenByDefault) {
  const TempDir dir;
  Recipe recipe = kept_recipe();
  recipe.watch.samples = 0;
  Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
  EXPECT_FALSE(std::filesystem::exists(dir / "samples"));
}

TEST(RunSamples, AFullDiskLosesOnlyTheImages) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "samples/"};
  env.inject(fault);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Trainer(env, kept_recipe(), quiet_options(dir.path())).run().steps, 4);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("samples of training are not kept, the run continues"), std::string::npos)
      << said;
  EXPECT_NE(said.find("mistakes are not kept"), std::string::npos) << said;
}

TEST(RunSamples, LossesAreTheSameWithAndWithoutRecording) {
  const auto losses = [](Recipe recipe) {
    const TempDir dir;
    recipe.watch.every = 1;
    Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
    std::istringstream lines(read_text(dir / "metrics.jsonl"));
    std::vector<double> found;
    for (std::string line; std::getline(lines, line);)
      if (const json record = json::parse(line); record["kind"] == "step")
        found.push_back(record["loss"]);
    return found;
  };
  Recipe plain = kept_recipe(), watched = kept_recipe();
  plain.watch.samples = plain.watch.histograms = 0;
  plain.watch.telemetry_hz = 0;
  watched.watch.trace = "steps:2-3";
  const auto expected = losses(plain);
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_EQ(losses(watched), expected);
}

// TensorBoard's reader: $SATURATE_PYTHON, or python3.
TEST(TensorBoardReaderOfARun, FindsHistogramsAndImages) {
  const char* given = std::getenv("SATURATE_PYTHON");
  const std::string python = given ? given : "python3";
  if (std::system(("'" + python + "' -c 'import tensorboard' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << "no Python with tensorboard: set SATURATE_PYTHON to one to run this";
  const TempDir dir;
  Trainer(Env::posix(), kept_recipe(), quiet_options(dir.path())).run();
  const std::string command = "'" + python + "' '" +
                              testing::source_path("tests/oracles/read_events.py") + "' '" +
                              (dir / "tb") + "' >'" + (dir / "out") + "' 2>'" + (dir / "err") + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text(dir / "err");
  const json found = json_of(dir / "out");
  ASSERT_EQ(found["images"].size(), 4u);
  EXPECT_EQ(found["images"]["samples/0"], json::parse("[[1, 16, 16]]"));
  int gradients = 0;
  for (const auto& [tag, points] : found["histograms"].items()) {
    ASSERT_EQ(points.size(), 2u) << tag << " after steps 2 and 4";
    EXPECT_EQ(points[0]["step"], 2);
    double sum = 0;
    for (const double value : points[0]["counts"]) sum += value;
    EXPECT_EQ(points[0]["num"], sum);
    EXPECT_LE(points[0]["min"], points[0]["max"]);
    gradients += tag.starts_with("gradients/");
  }
  EXPECT_GT(gradients, 0);
  EXPECT_EQ(found["histograms"].size(), size_t(2 * gradients)) << "one for each parameter";
}

}  // namespace
}  // namespace saturate
