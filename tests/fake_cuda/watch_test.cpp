// The program's own streams under a StreamWatch, and mistakes planted in them: each is found and
// named.
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "saturate/feed.h"
#include "saturate/model.h"
#include "tests/fake_cuda/host_testing.h"
#include "tests/fake_cuda/stream_watch.h"

namespace saturate::testing {

// An MLP that reads a number from the device in each step. Not in an anonymous namespace, so that
// stack traces have its name.
class LooksAtNumbers : public Model {
 public:
  LooksAtNumbers(const ModelOptions& options, const ModelInput& input)
      : inner_(find_entry(models(), "mlp", "model.name").make(options, input)) {}
  at::Tensor forward(const at::Tensor& images) override;
  void set_training(bool training) override { inner_->set_training(training); }
  std::vector<NamedTensor> parameters() override { return inner_->parameters(); }
  std::vector<NamedTensor> buffers() override { return inner_->buffers(); }
  void to(const at::Device& device, bool channels_last) override {
    inner_->to(device, channels_last);
  }

 private:
  std::unique_ptr<Model> inner_;
};

at::Tensor LooksAtNumbers::forward(const at::Tensor& images) {
  const at::Tensor logits = inner_->forward(images);
  return logits * (logits.sum().item<float>() > 1e30f ? 0 : 1);
}

namespace {

const bool kAdded = [] {
  add_model("looks_at_numbers", "an MLP with an .item() in each step",
            [](const ModelOptions& options, const ModelInput& input) -> std::unique_ptr<Model> {
              return std::make_unique<LooksAtNumbers>(options, input);
            });
  return true;
}();

std::string lines(const std::vector<std::string>& findings) {
  std::string text;
  for (const std::string& finding : findings) text += finding + "\n";
  return text;
}

class Watched : public OnFakeCuda {
 protected:
  void TearDown() override {
    if (fake_cuda::control()) fake_cuda::control()->skip_waits(nullptr);
    OnFakeCuda::TearDown();
  }
  // The findings of a run.
  std::string findings(const std::vector<std::string>& settings) {
    StreamWatch watch;
    run_on_host(host_recipe(settings), dir / "run");
    EXPECT_GT(watch.uses(), 500) << "the watch received no accesses";
    return lines(watch.take_findings());
  }
};

TEST_F(Watched, APipelineHasNoMistake) {
  EXPECT_EQ(findings({"pipeline.copy=true"}), "");
  EXPECT_EQ(findings({"pipeline.copy=true", "pipeline.augment=true", "augment.rotate=20"}), "");
  EXPECT_EQ(findings({"pipeline.copy=true", "data.cache=device"}), "");
  EXPECT_EQ(findings({"train.graph=auto", "data.cache=device"}), "");
}

TEST_F(Watched, AMissingWaitBeforeTheStepIsFound) {
  fake_cuda::control()->skip_waits("BatchPipeline::deliver");
  const std::string found = findings({"pipeline.copy=true"});
  EXPECT_NE(found.find("without waiting for stream"), std::string::npos) << found;
  EXPECT_NE(found.find("BatchStages::"), std::string::npos) << found;
}

TEST_F(Watched, AMissingWaitBetweenStagesIsFound) {
  fake_cuda::control()->skip_waits("BatchPipeline::launch");
  const std::string found = findings({"pipeline.copy=true", "pipeline.augment=true"});
  EXPECT_NE(found.find("without waiting for stream"), std::string::npos) << found;
  EXPECT_NE(found.find("BatchStages::finish"), std::string::npos) << found;
}

TEST_F(Watched, AMissingRecordStreamIsFound) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  const std::string found = findings({"pipeline.copy=true"});
  EXPECT_NE(found.find("may still do so when it is freed"), std::string::npos) << found;
  EXPECT_NE(found.find("BatchStages::"), std::string::npos) << found;
}

// A buffer of the ring, which the loader fills while the copy stream may still read it.
TEST_F(Watched, ABufferThatGoesBackTooEarlyIsFound) {
  StreamWatch watch;
  fake_cuda::control()->delay(1000);  // no other question tells the host of the copies
  for (const bool planted : {false, true}) {
    if (planted) fake_cuda::control()->skip_waits("BatchPipeline::");
    run_on_host(host_recipe({"pipeline.copy=true", "pipeline.augment=true"}), dir / "run");
    const std::string found = lines(watch.take_findings());
    if (planted) {
      EXPECT_NE(found.find("pinned memory of "), std::string::npos) << found;
    } else {
      EXPECT_EQ(found, "");
    }
  }
}

TEST_F(Watched, AnAsyncCopyOfPageableMemoryIsFound) {
  const auto data = open_dataset(Env::posix(), "synth:size=16,count=60");
  LoaderOptions options;
  options.batch = 10;
  AugmentOptions augment;
  augment.size = 16;
  for (const bool pinned : {true, false}) {
    StreamWatch watch;
    const at::Device device(at::kCUDA, 0);
    Loader loader(*data, options, augment, pinned ? batch_allocator(device) : BufferAllocator());
    Ledger ledger(Env::posix());
    Feeder feeder(loader, device, true, ledger, augment);
    PipelineSetup setup;
    setup.stages.copy = Toggle::kOn;
    feeder.use_pipeline(std::move(setup));
    feeder.start_epoch(0);
    for (DeviceBatch batch; feeder.next(batch);) batch.images.add(1);
    const std::string found = lines(watch.take_findings());
    if (pinned) {
      EXPECT_EQ(found, "");
    } else {
      EXPECT_NE(found.find("a copy called async reads pageable memory: "), std::string::npos)
          << found;
      EXPECT_NE(found.find("BatchStages::"), std::string::npos) << found;
    }
  }
}

TEST_F(Watched, AnItemInTheStepIsFound) {
  const HostRun run = run_on_host(host_recipe({"model.name=looks_at_numbers"}), dir / "run");
  ASSERT_GE(run.steps.size(), kSteadyEnd);
  EXPECT_GE(of(run.steps[kSettled], Count::kWaits), 1);
  EXPECT_NE(run.sites.find("LooksAtNumbers::forward"), std::string::npos) << run.sites;
}

}  // namespace
}  // namespace saturate::testing
