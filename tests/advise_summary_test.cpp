// The first sentence of a diagnosis, on invented numbers.
#include <gtest/gtest.h>

#include <string>

#include "advise/diagnose.h"
#include "tests/classify_testing.h"

namespace saturate {
namespace {

using testing::computing;
using testing::input_bound;
using testing::what_if;

TEST(DiagnosisText, NamesTheCostOfEachWayToSaveMemory) {
  const auto summary = [](const std::string& setting) {
    return classify(computing({what_if(Cause::kMemory, 2, setting)})).summary;
  };
  EXPECT_TRUE(summary("train.checkpoint_segments=0").starts_with("Activations are recomputed"));
  EXPECT_TRUE(summary("train.accumulate=1").starts_with("The batch is split into micro-batches"));
  EXPECT_TRUE(summary("debug.off=[]").starts_with("Memory is freed"));
  EXPECT_TRUE(summary("train.batch=32").starts_with("The batch is larger"));
}

// A CPU has no queue of work to wait for.
TEST(DiagnosisText, HostSyncIsNamedByItsSetting) {
  const auto summary = [](const std::string& setting, bool on_gpu) {
    Measurements found = computing({what_if(Cause::kHostSync, 2, setting)});
    found.on_gpu = on_gpu;
    found.recipe.train.late_metrics = false;
    return classify(found).summary;
  };
  for (const bool on_gpu : {false, true})
    EXPECT_TRUE(summary("debug.checks=[]", on_gpu).starts_with("Anomaly detection checks"));
  EXPECT_TRUE(summary("debug.off=[]", false).starts_with("Loss and accuracy are read"));
  EXPECT_TRUE(summary("debug.off=[]", true).starts_with("The host waits for the device"));
}

TEST(DiagnosisText, LayoutIsNamedByItsSetting) {
  Measurements found = computing({what_if(Cause::kLayout, 2, "debug.off=[\"channels_last\"]")});
  EXPECT_TRUE(classify(found).summary.starts_with("The memory order of images"));
  found.on_gpu = found.recipe.train.cudnn_benchmark = true;
  EXPECT_TRUE(classify(found).summary.starts_with("cuDNN times its algorithms"));
  found.what_ifs[0].settings = {"debug.off=[\"cudnn_heuristics\"]"};
  EXPECT_TRUE(classify(found).summary.starts_with("The memory order of images"));
}

TEST(DiagnosisText, TensorsAreCountedAsSamples) {
  Measurements found = input_bound({what_if(Cause::kAugmentation, 2)});
  const std::string of_images = classify(found).summary;
  EXPECT_TRUE(
      of_images.starts_with("Augmenting images is the bottleneck: 198 images/s, where "
                            "compute alone does 1000 images/s"))
      << of_images;
  found.unit = "samples";
  const std::string of_tensors = classify(found).summary;
  EXPECT_TRUE(
      of_tensors.starts_with("Augmenting samples is the bottleneck: 198 samples/s, where "
                             "compute alone does 1000 samples/s"))
      << of_tensors;
}

}  // namespace
}  // namespace saturate
