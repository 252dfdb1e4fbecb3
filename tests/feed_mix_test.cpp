// Mixed batches and their loss, compared with torchvision and PyTorch; see effect_goldens.py.
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstring>

#include "saturate/feed.h"
#include "saturate/train_step.h"
#include "tests/formula.h"
#include "tests/image_testing.h"

namespace saturate {
namespace {

using testing::formula_tensor;

at::Tensor scaled_formula(const std::string& name, at::IntArrayRef shape, double scale) {
  return formula_tensor(name, shape, [scale](double u) { return u * scale; });
}

DeviceBatch five_samples(at::MemoryFormat format) {
  DeviceBatch batch;
  batch.images = scaled_formula("images", {5, 3, 6, 6}, 1).contiguous(format);
  batch.labels = at::tensor({0, 3, 1, 3, 2}, at::kLong);
  return batch;
}

// Returns the logits 4 * formula("logits"), whatever the images, in micro-batches of any size.
class FixedLogits : public Model {
 public:
  FixedLogits() : logits(scaled_formula("logits", {5, 4}, 4)) { logits.set_requires_grad(true); }
  at::Tensor forward(const at::Tensor& images) override {
    const at::Tensor part = logits.narrow(0, seen, images.size(0));
    seen += images.size(0);
    return part;
  }
  std::vector<NamedTensor> parameters() override { return {{"logits", logits}}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void set_training(bool) override {}
  void to(const at::Device&, bool) override {}
  at::Tensor logits;
  int64_t seen = 0;
};

struct MixCase {
  Mix mix;
  double loss;
  at::Tensor images;
};

std::vector<MixCase> golden_cases() {
  const auto bytes = read_file(Env::posix(), testing::golden("mix.bin"));
  std::vector<MixCase> cases;
  for (auto& line : testing::golden_lines("mix.txt")) {
    MixCase one;
    std::string kind;
    line >> kind >> one.mix.lambda >> one.mix.offset >> one.mix.box.x >> one.mix.box.y >>
        one.mix.box.width >> one.mix.box.height >> one.loss;
    one.mix.kind = kind == "cutmix" ? MixKind::kCutMix : MixKind::kMixUp;
    one.images = at::empty({5, 3, 6, 6});
    std::memcpy(one.images.mutable_data_ptr<float>(),
                bytes.data() + cases.size() * one.images.nbytes(), one.images.nbytes());
    cases.push_back(one);
  }
  return cases;
}

TEST(MixBatch, EqualsTorchvision) {
  const auto cases = golden_cases();
  ASSERT_EQ(cases.size(), 4u);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
    for (const MixCase& one : cases) {
      DeviceBatch batch = five_samples(format);
      mix_batch(one.mix, batch);
      EXPECT_TRUE(at::allclose(batch.images, one.images, 0, 1e-6));
      EXPECT_TRUE(batch.images.is_contiguous(format));
    }
}

// In one and in two micro-batches: the loss is that of soft targets.
TEST(MixBatch, TrainsOnTheLossOfSoftLabels) {
  for (const int part : {0, 3})
    for (const MixCase& one : golden_cases()) {
      DeviceBatch batch = five_samples(at::MemoryFormat::Contiguous);
      mix_batch(one.mix, batch);
      FixedLogits model;
      OptimizerOptions sgd;
      const auto optimizer = make_optimizer(sgd, make_parameter_groups(sgd, model.parameters()));
      Ledger ledger(Env::posix());
      TrainStep step(model, classification(), *optimizer,
                     {.label_smoothing = 0.1, .micro_batch = part}, ledger);
      RunningMetrics running(classification());
      step.run(batch, 0.1, running);
      EXPECT_NEAR(running.read().loss, one.loss, 1e-6);
    }
}

TEST(MixBatch, TheLabelWithTheLargerWeightComesFirst) {
  Mix mix{MixKind::kMixUp, 0.3, 1, {}};
  DeviceBatch batch = five_samples(at::MemoryFormat::Contiguous);
  const at::Tensor own = batch.labels, other = at::tensor({2, 0, 3, 1, 3}, at::kLong);
  mix_batch(mix, batch);
  EXPECT_TRUE(batch.labels.equal(other));
  EXPECT_TRUE(batch.mixed_labels.equal(own));
  EXPECT_DOUBLE_EQ(batch.lambda, 0.7);
  mix.lambda = 0.7;
  batch = five_samples(at::MemoryFormat::Contiguous);
  mix_batch(mix, batch);
  EXPECT_TRUE(batch.labels.equal(own));
  EXPECT_TRUE(batch.mixed_labels.equal(other));
}

TEST(MixBatch, OffChangesNothing) {
  DeviceBatch batch = five_samples(at::MemoryFormat::Contiguous);
  const at::Tensor before = batch.images.clone();
  mix_batch({}, batch);
  EXPECT_TRUE(batch.images.equal(before));
  EXPECT_FALSE(batch.mixed_labels.defined());
}

}  // namespace
}  // namespace saturate
