// train.batch=auto on a GPU where train.memory_gb, not the data, is the limit: the run that follows
// stays within it, and one with a batch half as large again does not.
#include "saturate/data/error.h"
#include "tests/fake_cuda/host_testing.h"

namespace saturate::testing {
namespace {

constexpr int kImages = 1200;

struct Setting {
  const char* name;
  std::vector<std::string> settings;
  bool tight;  // a larger batch runs out of memory
  friend void PrintTo(const Setting& of, std::ostream* out) { *out << of.name; }
};

class AutomaticBatch : public OnFakeCuda, public ::testing::WithParamInterface<Setting> {
 protected:
  void SetUp() override {
    OnFakeCuda::SetUp();
    if (IsSkipped()) return;
    const int64_t bytes = live_bytes() + (int64_t{256} << 20);
    memory_ = "train.memory_gb=" + std::to_string(double(bytes) / double(1 << 30));
  }
  Recipe recipe(const std::string& batch) const {
    std::vector<std::string> all = {"data.source=synth:size=64,count=" + std::to_string(kImages),
                                    "data.eval_source=synth:size=64,split=test,count=400",
                                    "augment.size=64",
                                    "model.name=simple_cnn",
                                    "precision.mode=fp32",
                                    memory_,
                                    "train.batch=" + batch};
    const auto& more = GetParam().settings;
    all.insert(all.end(), more.begin(), more.end());
    return host_recipe(all);
  }

 private:
  std::string memory_;
};

TEST_P(AutomaticBatch, LeavesRoomForAllThatTheRunHolds) {
  TrainerOptions options;
  options.out = dir / "run";
  options.save = false;
  options.progress = Progress::Style::kSilent;
  int found = 0;
  {
    Trainer trainer(Env::posix(), recipe("auto"), options);
    found = trainer.recipe().train.batch;
    EXPECT_GT(found, 16);
    EXPECT_LT(found, kImages) << "the data, not the memory, is the limit";
    std::printf("%-24s %d images\n", GetParam().name, found);
    const TrainResult result = trainer.run();
    EXPECT_EQ(result.samples, kImages);
  }
  if (!GetParam().tight) return;
  release_memory();
  const Error error = error_of(
      [&] { Trainer(Env::posix(), recipe(std::to_string(found * 3 / 2)), options).run(); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(error.reason().find("out of memory"), std::string::npos) << error.what();
}

INSTANTIATE_TEST_SUITE_P(
    Runs, AutomaticBatch,
    ::testing::Values(
        Setting{"Serial", {"pipeline.copy=false"}, true},
        Setting{"Copied", {"pipeline.copy=true"}, true},
        Setting{"HeldImages", {"pipeline.copy=true", "data.cache=device"}, true},
        Setting{"Pipeline",
                {"pipeline.copy=true", "pipeline.augment=true", "augment.rotate=20",
                 "model.name=mlp", "model.width=0.1"},
                false},
        Setting{"Graph", {"train.graph=auto", "data.cache=device"}, false},
        Setting{"Encoder",
                {"data.source=synth:size=64,count=1200,classes=2,masks=true",
                 "data.eval_source=synth:size=64,split=test,count=100,classes=2,masks=true",
                 "train.task=segment", "model.name=unet", "model.width=0.0625",
                 "optimizer.freeze=[\"encoder.*\"]", "optimizer.freeze_statistics=true",
                 "pipeline.copy=true", "pipeline.augment=true", "pipeline.encoder=true"},
                false}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace saturate::testing
