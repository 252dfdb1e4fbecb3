// One process over several devices, for which the CPU stands several times.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "reduce/data_parallel.h"
#include "saturate/model.h"
#include "saturate/train_step.h"
#include "step/precision.h"
#include "tests/data_testing.h"
#include "tests/twin_testing.h"

namespace saturate {
namespace {

using testing::symmetric;

constexpr int kClasses = 3, kSide = 8;

std::unique_ptr<Model> make_one(const std::string& name, at::ScalarType type) {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  auto model = make_model(options, {kClasses, kSide, Env::posix()});
  // Trained weights are compared in double: rounding of floats depends on the batch and processor.
  if (type != at::kFloat)
    for (const auto& [each, tensor] : model->parameters()) tensor.set_data(tensor.to(type));
  return model;
}

// Only the first one's weights are the formula's: the others must come by them.
std::unique_ptr<Model> make_filled(const std::string& name, int replicas,
                                   at::ScalarType type = at::kFloat) {
  auto model = make_one(name, type);
  testing::fill_all(*model);
  if (replicas == 1) return model;
  std::vector<Replica> others;
  for (int i = 1; i < replicas; ++i) others.push_back({make_one(name, type), at::kCPU});
  return make_data_parallel({std::move(model), at::kCPU}, std::move(others));
}

DeviceBatch batch_of(int step, int64_t count) {
  DeviceBatch batch;
  batch.images = symmetric("images." + std::to_string(step), {count, 3, kSide, kSide}, 2);
  batch.labels = at::arange(count) % kClasses;
  batch.global_batch = count;
  return batch;
}

std::vector<at::Tensor> train(Model& model, StepOptions options = {}, int64_t batch = 16) {
  Ledger ledger(Env::posix());
  OptimizerOptions how;
  how.weight_decay = 0;
  const auto optimizer = make_optimizer(how, make_parameter_groups(how, model.parameters()));
  TrainStep step(model, classification(), *optimizer, options, ledger);
  model.set_training(true);
  RunningMetrics metrics(classification());
  for (int i = 0; i < 20; ++i) {
    DeviceBatch given = batch_of(i, batch);
    given.images = given.images.to(model.parameters().front().tensor.scalar_type());
    step.run(given, 0.05, metrics);
  }
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : model.parameters()) values.push_back(tensor.detach().clone());
  return values;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), 1e-6) << i;
}

TEST(DataParallel, TrainsAsOneModelOnTheWholeBatch) {
  for (int64_t batch : {16, 7, 2}) {  // of 2 images the third replica has none
    const auto expected = train(*make_filled("mlp", 1, at::kDouble), {}, batch);
    for (int replicas : {2, 3}) {
      SCOPED_TRACE(std::to_string(batch) + " images, " + std::to_string(replicas) + " replicas");
      expect_close(train(*make_filled("mlp", replicas, at::kDouble), {}, batch), expected);
    }
  }
}

TEST(DataParallel, AccumulatesAndClipsAlike) {
  StepOptions options;
  options.micro_batch = 5;
  options.clip_norm = 0.5;
  expect_close(train(*make_filled("mlp", 2), options), train(*make_filled("mlp", 1), options));
}

// Notes the threads that compute it.
class ThreadNotingModel : public Model {
 public:
  ThreadNotingModel() : inner_(make_filled("mlp", 1)) {}
  at::Tensor forward(const at::Tensor& images) override {
    threads.push_back(std::this_thread::get_id());
    return inner_->forward(images);
  }
  void set_training(bool training) override { inner_->set_training(training); }
  std::vector<NamedTensor> parameters() override { return inner_->parameters(); }
  std::vector<NamedTensor> buffers() override { return inner_->buffers(); }
  void to(const at::Device& device, bool channels_last) override {
    inner_->to(device, channels_last);
  }

  std::vector<std::thread::id> threads;

 private:
  std::unique_ptr<Model> inner_;
};

// cuDNN's benchmark keeps what it chose for each thread.
TEST(DataParallel, AReplicaKeepsItsThread) {
  auto first = std::make_unique<ThreadNotingModel>(),
       second = std::make_unique<ThreadNotingModel>();
  ThreadNotingModel &noting = *first, &other = *second;
  std::vector<Replica> others;
  others.push_back({std::move(second), at::kCPU});
  const auto model = make_data_parallel({std::move(first), at::kCPU}, std::move(others));
  train(*model);
  ASSERT_EQ(other.threads.size(), 20u);
  EXPECT_EQ(std::set(other.threads.begin(), other.threads.end()).size(), 1u);
  EXPECT_EQ(std::set(noting.threads.begin(), noting.threads.end()).size(), 1u);
  EXPECT_NE(noting.threads[0], other.threads[0]);
}

TEST(DataParallel, AFrozenParameterStaysAsItIs) {
  const auto model = make_filled("mlp", 2), alone = make_filled("mlp", 1);
  for (const auto& one : {model.get(), alone.get()})
    one->parameters()[0].tensor.set_requires_grad(false);
  const at::Tensor before = model->parameters()[0].tensor.clone();
  expect_close(train(*model), train(*alone));
  EXPECT_TRUE(at::equal(model->parameters()[0].tensor, before));
}

TEST(DataParallel, TheFirstChunkMakesTheRunningStatistics) {
  const auto model = make_filled("simple_cnn", 2), alone = make_filled("simple_cnn", 1);
  for (const auto& one : {model.get(), alone.get()}) one->set_training(true);
  const at::Tensor images = batch_of(0, 16).images;
  const at::Tensor logits = model->forward(images);
  const at::Tensor first = alone->forward(images.narrow(0, 0, 8));
  EXPECT_TRUE(at::equal(logits.narrow(0, 0, 8), first));
  const auto found = model->buffers(), expected = alone->buffers();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::equal(found[i].tensor, expected[i].tensor)) << found[i].name;
}

TEST(DataParallel, ReplicasComputeInTheCallersPrecision) {
  const auto model = make_filled("mlp", 2), alone = make_filled("mlp", 1);
  const AutocastScope autocast(PrecisionMode::kBf16, at::kCPU);
  const at::Tensor images = batch_of(0, 16).images;
  const at::Tensor logits = model->forward(images);
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(logits, alone->forward(images), 1e-2, 1e-2));
}

// Nothing but a loss.
class Seven : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override { return images.flatten(1); }
  ModelFacets facets() override {
    ModelFacets facets;
    facets.loss = [](const at::Tensor& logits, const at::Tensor&) { return logits.sum() * 0 + 7; };
    return facets;
  }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {}; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}
};

TEST(DataParallel, ALossOfTheModelsOwnIsNotLostButRefused) {
  std::vector<Replica> others;
  others.push_back({std::make_unique<Seven>(), at::kCPU});
  const Error error = testing::error_of([&] {
    make_data_parallel({std::make_unique<Seven>(), at::kCPU}, std::move(others));
  });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.where(), "distributed.mode");
}

TEST(DataParallel, AFailureOfAReplicaIsTheCallers) {
  const auto model = make_filled("mlp", 2);
  EXPECT_ANY_THROW(model->forward(symmetric("wrong", {4, 3, kSide, kSide + 1}, 1)));
}

}  // namespace
}  // namespace saturate
