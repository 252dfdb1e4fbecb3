// Whole runs of several ranks, as threads of one process: what must be equal on all ranks, and
// equal to one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>

#include "run/checkpoint.h"
#include "run/rank_buffers.h"
#include "saturate/module_model.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::run_ranks;
using testing::saving_options;
using testing::small_recipe;
using testing::TempDir;

std::atomic<bool> rank_evaluates = false;
thread_local std::vector<float>* seen_here =
    nullptr;  // the values that each training forward finds

// A linear layer with the same weights in every process.
class RankModel : public torch::nn::Module {
 public:
  RankModel(int64_t inputs, int64_t classes)
      : fc_(register_module("fc", torch::nn::Linear(inputs, classes))) {
    fill("fc.weight", fc_->weight);
    fill("fc.bias", fc_->bias);
  }
  at::Tensor forward(const at::Tensor& images) {
    if (!is_training()) rank_evaluates = true;
    return fc_(images.flatten(1)) * 0.1;
  }

 protected:
  static void fill(const std::string& name, const at::Tensor& tensor) {
    testing::fill({name, tensor});
  }
  torch::nn::Linear fc_;
};

// A part of it is used only in every second step.
class AlternatingRank : public RankModel {
 public:
  AlternatingRank(int64_t inputs, int64_t classes)
      : RankModel(inputs, classes),
        extra_(register_module("extra", torch::nn::Linear(inputs, classes))) {
    fill("extra.weight", extra_->weight);
    fill("extra.bias", extra_->bias);
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor logits = RankModel::forward(images);
    return calls_++ % 2 == 0 ? logits + extra_(images.flatten(1)) * 0.1 : logits;
  }

 private:
  torch::nn::Linear extra_;
  int calls_ = 0;
};

// Follows the mean of its images, and reads it in the next forward; from the third step on.
template <int kStart>
class FollowingRank : public RankModel {
 public:
  FollowingRank(int64_t inputs, int64_t classes)
      : RankModel(inputs, classes), mean_(register_buffer("mean", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor logits = RankModel::forward(images) + mean_;
    if (!is_training()) return logits;
    if (seen_here) seen_here->push_back(mean_.item<float>());
    const at::NoGradGuard no_grad;
    if (calls_++ >= kStart) mean_.mul_(0.5).add_(images.mean().detach().to(at::kFloat));
    return logits;
  }

 private:
  at::Tensor mean_;
  int calls_ = 0;
};

// Its loss has a parameter that forward does not use.
class LearntRankLoss : public RankModel {
 public:
  LearntRankLoss(int64_t inputs, int64_t classes)
      : RankModel(inputs, classes), scale_(register_parameter("scale", at::ones({1}))) {}
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) {
    EXPECT_GT(labels.size(0), 0);
    return at::cross_entropy_loss(logits * scale_, labels);
  }

 private:
  at::Tensor scale_;
};

template <class Module>
std::unique_ptr<Model> make_rank_model(const ModelOptions&, const ModelInput& input) {
  return make_module_model<Module>(int64_t(3) * input.size.area(), input.outputs);
}

Recipe rank_recipe(const std::string& model, const std::string& more = "") {
  [[maybe_unused]] static const bool once = [] {
    add_model("rank_linear", "of a test", make_rank_model<RankModel>);
    add_model("rank_alternating", "of a test", make_rank_model<AlternatingRank>);
    add_model("rank_following", "of a test", make_rank_model<FollowingRank<0>>);
    add_model("rank_following_late", "of a test", make_rank_model<FollowingRank<3>>);
    add_model("rank_learnt_loss", "of a test", make_rank_model<LearntRankLoss>);
    return true;
  }();
  Recipe recipe = small_recipe(
      "[optimizer]\nlr = 0.02\n[schedule]\nname = \"constant\"\n"
      "[watch]\nevery = 1\ntelemetry_hz = 0\n" +
      more);
  recipe.model.name = model;
  recipe.distributed.timeout_s = 30;
  return recipe;
}

using PrepareRank = std::function<void(Recipe&, TrainerOptions&, int rank)>;

// A run of `world` processes in the folder `out`; `prepare` may make ranks differ.
void train_ranks_into(
    const std::string& out, int world, const Recipe& recipe,
    const PrepareRank& prepare = [](Recipe&, TrainerOptions&, int) {}) {
  const auto train = [&](Group* group) {
    Recipe own = recipe;
    TrainerOptions options = saving_options(out);
    if (group) options.group = std::shared_ptr<Group>(group, [](Group*) {});
    prepare(own, options, group ? group->rank() : 0);
    Trainer(Env::posix(), own, options).run();
  };
  if (world == 1) return train(nullptr);
  run_ranks(
      world, [&](Group& group) { train(&group); }, recipe.distributed);
}

Checkpoint rank_checkpoint(const std::string& out) {
  return find_checkpoint(Env::posix(), out, [](const std::string& text) { ADD_FAILURE() << text; });
}

at::Tensor rank_tensor(const Checkpoint& checkpoint, const std::string& name) {
  for (const auto& named : checkpoint.model)
    if (named.name == name) return named.tensor;
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

void expect_ranks_near(const std::string& out, const std::string& other) {
  const Checkpoint one = rank_checkpoint(out), two = rank_checkpoint(other);
  ASSERT_EQ(one.position.step, two.position.step);
  ASSERT_FALSE(one.model.empty());
  ASSERT_EQ(one.model.size(), two.model.size());
  for (const auto& [name, tensor] : one.model)
    EXPECT_LE((tensor - rank_tensor(two, name)).abs().max().item<double>(), 1e-6) << name;
}

// "eval 4", "step 5", ...: kind and step of every record.
std::vector<std::string> rank_records(const std::string& out) {
  std::istringstream lines(testing::read_text(out + "/metrics.jsonl"));
  std::vector<std::string> records;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    records.push_back(fmt::format("{} {}", json["kind"].get<std::string>(), json["step"].dump()));
  }
  return records;
}

TEST(RankRuns, AnEvaluationCancelledByASignalIsRepeatedBeforeAnotherStep) {
  const TempDir dir;
  Recipe recipe = rank_recipe("rank_linear");
  recipe.data.eval_source = "synth:size=16,count=100,split=test";
  recipe.train.eval_batch = 10;
  rank_evaluates = false;
  train_ranks_into(dir / "run", 2, recipe, [](Recipe&, TrainerOptions& options, int rank) {
    if (rank == 1) options.should_stop = [] { return rank_evaluates.load(); };
  });
  EXPECT_EQ(rank_checkpoint(dir / "run").position.step, 4) << "one more step was trained";
  train_ranks_into(dir / "run", 2, recipe,
                   [&](Recipe&, TrainerOptions& options, int) { options.resume = dir / "run"; });
  EXPECT_EQ(rank_records(dir / "run"),
            (std::vector<std::string>{"step 1", "step 2", "step 3", "step 4", "epoch 4", "eval 4",
                                      "step 5", "step 6", "step 7", "step 8", "epoch 8", "eval 8",
                                      "end 8"}));
}

TEST(RankRuns, AWhiteningStemSeesTheSameImagesAsWithOneProcess) {
  const TempDir dir;
  for (const char* model : {"resnet9", "airbench"}) {
    Recipe recipe = rank_recipe(model);
    recipe.model.width = 0.25;
    recipe.train.epochs = 0.25;
    at::Tensor stem;
    for (int world : {1, 2, 3}) {
      const std::string out = dir / fmt::format("{}-{}", model, world);
      train_ranks_into(out, world, recipe);
      const at::Tensor own = rank_tensor(rank_checkpoint(out), "stem_weight").clone();
      if (stem.defined()) {
        EXPECT_TRUE(at::equal(own, stem)) << model << " in " << world << " processes";
      }
      stem = own;
    }
  }
}

TEST(RankRuns, SettingsThatAffectCollectivesAreComparedBeforeTheFirstStep) {
  const TempDir dir;
  const auto refusal = [&](int world, const PrepareRank& prepare) {
    const Error error = error_of(
        [&] { train_ranks_into(dir / "run", world, rank_recipe("rank_linear"), prepare); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(std::filesystem::exists(dir / "run/metrics.jsonl"));
    return error.reason();
  };
  EXPECT_EQ(refusal(2, [](Recipe& recipe, TrainerOptions&,
                          int rank) { recipe.watch.every = rank == 1 ? 5 : 10; }),
            "the recipe of rank 1 differs from rank 0's: it has watch.every = 5, not watch.every = "
            "10");
  EXPECT_EQ(refusal(3,
                    [](Recipe& recipe, TrainerOptions&, int rank) {
                      if (rank > 0) recipe.train.late_metrics = !recipe.train.late_metrics;
                    }),
            "the recipe of ranks 1, 2 differs from rank 0's: rank 1 has debug.off = "
            "['late_metrics'], not debug.off = []");
  EXPECT_EQ(refusal(2,
                    [](Recipe&, TrainerOptions& options, int rank) {
                      if (rank > 0) options.save = false;
                    }),
            "the run of rank 1 differs from rank 0's: it has no checkpoints, not checkpoints");
}

// Each rank has its own output and threads.
TEST(RankRuns, OtherSettingsMayDiffer) {
  const TempDir dir;
  train_ranks_into(dir / "run", 2, rank_recipe("rank_linear"),
                   [&dir](Recipe& recipe, TrainerOptions&, int rank) {
                     recipe.watch.samples = recipe.watch.histograms = rank;
                     recipe.watch.csv = rank == 1;
                     recipe.data.threads = 1 + rank;
                     recipe.data.index.mode = rank == 1 ? IndexMode::kOff : IndexMode::kAuto;
                     recipe.data.store.cache_dir = dir / std::to_string(rank);
                     recipe.data.store.timeout_s = 100 + rank;
                   });
  EXPECT_EQ(rank_checkpoint(dir / "run").position.step, 8);
}

TEST(RankRuns, AShardedOptimizerSupportsParametersThatAreUsedOccasionally) {
  const TempDir dir;
  for (const bool to_none : {true, false}) {
    Recipe recipe = rank_recipe("rank_alternating");
    recipe.optimizer.set_to_none = to_none;
    const std::string name = to_none ? "none" : "zero";
    train_ranks_into(dir / (name + "-one"), 1, recipe);
    recipe.distributed.find_unused = true;
    train_ranks_into(dir / (name + "-whole"), 2, recipe);
    recipe.distributed.shard_optimizer = true;
    train_ranks_into(dir / (name + "-sharded"), 2, recipe);
    expect_ranks_near(dir / (name + "-whole"), dir / (name + "-one"));
    expect_ranks_near(dir / (name + "-sharded"), dir / (name + "-one"));
  }
}

TEST(RankRuns, ALossWithParametersIsReducedIfARankHasNoImages) {
  const TempDir dir;
  Recipe recipe = rank_recipe("rank_learnt_loss");
  recipe.train.batch = 33;  // an epoch's last batch has one image
  for (const bool find_unused : {false, true}) {
    recipe.distributed.find_unused = find_unused;
    const std::string name = find_unused ? "found" : "all";
    train_ranks_into(dir / name, 2, recipe);
    train_ranks_into(dir / (name + "-one"), 1, recipe);
    EXPECT_NE(rank_tensor(rank_checkpoint(dir / name), "scale").item<float>(), 1);
    expect_ranks_near(dir / name, dir / (name + "-one"));
  }
}

// The values that every rank's training forwards have found.
std::vector<std::vector<float>> seen_by_ranks(const std::string& model, const std::string& out) {
  std::vector<std::vector<float>> seen(3);
  train_ranks_into(out, 3, rank_recipe(model), [&](Recipe&, TrainerOptions&, int rank) {
    seen_here = &seen[size_t(rank)];  // of this rank's thread, which ends with the run
  });
  return seen;
}

TEST(RankRuns, BuffersThatForwardReadsAreRankZeros) {
  const TempDir dir;
  const auto seen = seen_by_ranks("rank_following", dir / "run");
  ASSERT_EQ(seen[0].size(), 8u);
  EXPECT_NE(seen[0][1], seen[0][7]);
  for (size_t rank : {1, 2}) EXPECT_EQ(seen[rank], seen[0]) << rank;
}

// Buffers that are first written in step 4 are broadcast in step 5.
TEST(RankRuns, BuffersThatAreWrittenLaterAreRankZerosAStepLater) {
  const TempDir dir;
  const auto seen = seen_by_ranks("rank_following_late", dir / "run");
  ASSERT_EQ(seen[0].size(), 8u);
  EXPECT_EQ(seen[0][3], 0);
  for (size_t rank : {1, 2})
    for (size_t step : {0, 1, 2, 3, 5, 6, 7})
      EXPECT_EQ(seen[rank][step], seen[0][step]) << rank << ", step " << step + 1;
}

TEST(RankBuffers, BatchNormsStatisticsAreNotBroadcastBeforeAStep) {
  run_ranks(2, [](Group& group) {
    ModelOptions options;
    options.name = "simple_cnn";
    const auto model = make_model(options, {3, 8, Env::posix()});
    for (const auto& tensors : {model->parameters(), model->buffers()})
      for (const auto& named : tensors) testing::fill(named);
    RankBuffers buffers(group, *model);
    model->set_training(true);
    for (int step = 0; step < 2; ++step) {
      buffers.before_step();
      model->forward(at::ones({2, 3, 8, 8}) * double(group.rank() + step));
      buffers.after_step();
      EXPECT_FALSE(buffers.written());
    }
    const auto means = [&] {
      for (const auto& [name, tensor] : model->buffers())
        if (name.ends_with("running_mean")) return group.gather(tensor);
      return at::Tensor();
    };
    EXPECT_FALSE(at::equal(means()[0], means()[1]));
    buffers.take_all();
    EXPECT_TRUE(at::equal(means()[0], means()[1]));
  });
}

Error single_image_refusal(const std::string& model, int batch, int world) {
  const TempDir dir;
  Recipe recipe = rank_recipe(model);
  recipe.train.batch = batch;
  return error_of([&] { train_ranks_into(dir / "run", world, recipe); });
}

TEST(SingleImage, IsRefusedBeforeTrainingIfTheModelCannot) {
  const Error one = single_image_refusal("resnet18", 99, 1);
  EXPECT_EQ(one.exit_code(), 2);
  EXPECT_EQ(one.reason(),
            "100 images in batches of 99 leave a last batch of one image, which BatchNorm in "
            "resnet18 cannot train on");
  const Error two = single_image_refusal("resnet18", 33, 2);
  EXPECT_EQ(two.exit_code(), 2);
  EXPECT_NE(
      std::string(two.what())
          .find("100 images in batches of 33 over 2 processes leave a local batch of one image"),
      std::string::npos)
      << two.what();
}

// A model without BatchNorm, and one whose BatchNorms have several pixels.
TEST(SingleImage, IsTrainedOnIfTheModelCan) {
  for (const char* model : {"mlp", "simple_cnn"}) {
    for (int world : {1, 2}) {
      const TempDir dir;
      Recipe recipe = rank_recipe(model);
      recipe.train.batch = 99;
      recipe.train.epochs = 1;
      train_ranks_into(dir / "run", world, recipe);
      EXPECT_EQ(rank_checkpoint(dir / "run").position.samples, 100) << model << " " << world;
    }
  }
}

}  // namespace
}  // namespace saturate
