// Steps of several processes against one process on the joint batch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "saturate/gradient_reducer.h"
#include "saturate/sync_batch_norm.h"
#include "saturate/train_step.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::run_ranks;
using testing::symmetric;

OptimizerOptions sgd() {
  OptimizerOptions options;
  options.nesterov = false;
  options.weight_decay = 0;
  return options;
}

constexpr int kClasses = 3, kSide = 8;

// The formula's values for every `count` images in turn.
DeviceBatch joint_batch(int step, int64_t count) {
  DeviceBatch batch;
  batch.images = symmetric("images." + std::to_string(step), {count, 3, kSide, kSide}, 2);
  batch.labels = at::arange(count) % kClasses;
  batch.global_batch = count;
  return batch;
}

DeviceBatch in_order(DeviceBatch batch, const std::vector<int64_t>& order) {
  if (order.empty()) return batch;
  const at::Tensor places = at::tensor(at::IntArrayRef(order));
  batch.images = batch.images.index_select(0, places);
  batch.labels = batch.labels.index_select(0, places);
  return batch;
}

DeviceBatch share_of(const DeviceBatch& joint, int rank, int world) {
  DeviceBatch own = joint;
  const at::Tensor places =
      at::arange(std::min<int64_t>(rank, joint.global_batch), joint.global_batch, world);
  own.images = joint.images.index_select(0, places);
  own.labels = joint.labels.index_select(0, places);
  return own;
}

struct Case {
  std::string model = "mlp";
  std::vector<int64_t> batches = {16};  // images of the steps in turn
  StepOptions step = {};
  DistributedOptions distributed = {};
  std::string optimizer = "sgd";
  int steps = 20;
  std::vector<int64_t> order = {};  // of each batch's images; empty: as they are
  bool channels_last = false;
};

std::unique_ptr<Model> make_filled(const std::string& name, bool channels_last = false) {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  auto model = make_model(options, {kClasses, kSide, Env::posix()});
  for (const auto& tensors : {model->parameters(), model->buffers()})
    for (const auto& named : tensors) testing::fill(named);
  if (channels_last)
    for (const auto& [name_of_one, tensor] : model->parameters())
      if (tensor.dim() == 4) tensor.set_data(tensor.contiguous(at::MemoryFormat::ChannelsLast));
  return model;
}

struct Trained {
  std::vector<NamedTensor> parameters, buffers, state;
  double loss = 0;
};

std::vector<NamedTensor> copy_of(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> copies;
  for (const auto& [name, tensor] : tensors) copies.push_back({name, tensor.detach().clone()});
  return copies;
}

// `group`: null for one process.
Trained train(const Case& how, Model& model, Group* group) {
  Ledger ledger(Env::posix());
  OptimizerOptions options = sgd();
  options.name = how.optimizer;
  auto groups = make_parameter_groups(options, model.parameters());
  const auto make = [&](std::vector<ParameterGroup> of) {
    return make_optimizer(options, std::move(of));
  };
  const bool sharded = group && how.distributed.shard_optimizer;
  const auto optimizer =
      sharded ? make_sharded_optimizer(*group, groups, make) : make(std::move(groups));
  StepOptions step_options = how.step;
  if (group && how.distributed.sync_bn) step_options.synced_world = group->world();
  TrainStep step(model, classification(), *optimizer, step_options, ledger);
  std::optional<GradientReducer> reducer;
  std::optional<SyncBatchNorm> synced;
  if (group) {
    reducer.emplace(*group, model.parameters(), how.distributed);
    step.use_reducer(*reducer);
    if (how.distributed.sync_bn) synced.emplace(model, *group);
  }
  model.set_training(true);
  RunningMetrics metrics(classification());
  for (int i = 0; i < how.steps; ++i) {
    const DeviceBatch joint =
        in_order(joint_batch(i, how.batches[size_t(i) % how.batches.size()]), how.order);
    step.run(group ? share_of(joint, group->rank(), group->world()) : joint, 0.05, metrics);
  }
  if (group) {
    EXPECT_GT(ledger.times()[Phase::kReduce], 0) << "what is waited for is charged";
  }
  return {copy_of(model.parameters()), copy_of(model.buffers()), copy_of(optimizer->state()),
          metrics.read().loss};
}

std::vector<Trained> train_ranks(const Case& how, int world) {
  std::vector<std::unique_ptr<Model>> models;
  for (int rank = 0; rank < world; ++rank)
    models.push_back(make_filled(how.model, how.channels_last));
  std::vector<Trained> results(static_cast<size_t>(world));
  run_ranks(world, [&](Group& group) {
    results[size_t(group.rank())] = train(how, *models[size_t(group.rank())], &group);
  });
  return results;
}

void expect_close(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b,
                  double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_LE((a[i].tensor - b[i].tensor).abs().max().item<double>(), tolerance) << a[i].name;
  }
}

void expect_same(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

// All ranks end with the same bits, and within `tolerance` of one process.
void expect_as_one(const Case& how, int world, double tolerance = 1e-6) {
  SCOPED_TRACE(how.model + ", " + std::to_string(world) + " processes");
  Case alone = how;
  alone.distributed = {};
  const auto one = make_filled(how.model);
  const Trained expected = train(alone, *one, nullptr);
  const auto ranks = train_ranks(how, world);
  for (const Trained& rank : ranks) expect_same(rank.parameters, ranks[0].parameters);
  expect_close(ranks[0].parameters, expected.parameters, tolerance);
}

TEST(ReducedTraining, IsThatOfOneProcessOnTheJointBatch) {
  for (int world : {2, 4}) expect_as_one({}, world);
}

TEST(ReducedTraining, CountsEveryImageOnceHoweverUnevenlyTheyFall) {
  Case how;
  how.batches = {16, 7, 2, 5};  // of 2 images some of 4 ranks have none
  for (int world : {2, 4}) expect_as_one(how, world);
}

TEST(ReducedTraining, OfSeveralPartsSendsGradientsOnce) {
  Case how;
  how.step.micro_batch = 2;
  how.batches = {16, 7};  // 4 parts on one rank, 2 on another
  expect_as_one(how, 2);
}

TEST(ReducedTraining, ClipsTheJointGradientAndScalesTheLossAlike) {
  Case how;
  how.step.clip_norm = 0.5;
  expect_as_one(how, 2);
  how.step.precision.mode = PrecisionMode::kFp16;
  how.step.precision.initial_scale = 1024;
  const auto ranks = train_ranks(how, 2);
  expect_same(ranks[0].parameters, ranks[1].parameters);
}

TEST(ReducedTraining, BucketsOfAnySizeGiveTheSame) {
  Case how;
  how.distributed.bucket_mb = 0.001;  // one for each parameter
  expect_as_one(how, 2);
}

TEST(ReducedTraining, CheckpointedSegmentsReduceToo) {
  Case how;
  how.step.checkpoint_segments = 2;
  expect_as_one(how, 2);
}

// The values of 1 + 2^-40 have no fp32 of their own.
TEST(ReducedTraining, GradientsInDoublePrecisionKeepIt) {
  run_ranks(2, [](Group& group) {
    const at::Tensor parameter = at::ones({3}, at::kDouble).requires_grad_();
    GradientReducer reducer(group, {{"weight", parameter}}, {});
    reducer.before_forward();
    reducer.backward((parameter * (1 + std::ldexp(1.0, -40))).sum(), true, {});
    EXPECT_TRUE(at::equal(parameter.grad(), at::full({3}, 2 + std::ldexp(1.0, -39), at::kDouble)))
        << parameter.grad();
  });
}

TEST(ReducedTraining, CompressedGradientsAreNearAndAlikeOnAllRanks) {
  for (Compress compress : {Compress::kBf16, Compress::kFp16}) {
    Case how;
    how.distributed.compress = compress;
    const auto one = make_filled("mlp");
    const Trained expected = train(how, *one, nullptr);
    const auto ranks = train_ranks(how, 2);
    expect_same(ranks[0].parameters, ranks[1].parameters);
    expect_close(ranks[0].parameters, expected.parameters, 2e-2);
    bool differs = false;
    for (size_t i = 0; i < expected.parameters.size(); ++i)
      differs |=
          !at::allclose(ranks[0].parameters[i].tensor, expected.parameters[i].tensor, 0, 1e-6);
    EXPECT_TRUE(differs) << "nothing was rounded";
  }
}

// The remainder of thin matrices comes with the next steps: ranks stay equal, over buckets that are
// built anew after the first step, and near.
TEST(ReducedTraining, PowerSgdIsNearAndAlikeOnAllRanks) {
  Case how;
  how.distributed.compress = Compress::kPowerSgd;
  how.distributed.bucket_mb = 0.01;
  const auto one = make_filled("mlp");
  const Trained expected = train(how, *one, nullptr);
  double nearest = 1;
  for (int rank : {1, 8}) {
    how.distributed.powersgd_rank = rank;
    const auto ranks = train_ranks(how, 2);
    expect_same(ranks[0].parameters, ranks[1].parameters);
    double farthest = 0;
    for (size_t i = 0; i < expected.parameters.size(); ++i)
      farthest = std::max(farthest, (ranks[0].parameters[i].tensor - expected.parameters[i].tensor)
                                        .abs()
                                        .max()
                                        .item<double>());
    EXPECT_LT(farthest, nearest) << rank;
    EXPECT_GT(farthest, 1e-6) << "nothing was left out";
    nearest = farthest;
  }
}

TEST(SyncBatchNorm, TrainsAsBatchNormOnTheJointBatch) {
  Case how;
  how.model = "simple_cnn";
  how.batches = {16, 7, 2};
  how.distributed.sync_bn = true;
  how.steps = 9;
  expect_as_one(how, 2, 1e-5);
  expect_as_one(how, 3, 1e-5);
}

// Images (0 2)(4) on one rank and (1)(3) on the other, then (0)(2) and (1)(): a rank with fewer has
// as many parts.
TEST(SyncBatchNorm, PartsOfUnevenSharesAreAsMany) {
  for (const auto& [part, order] :
       {std::pair{2, std::vector<int64_t>{0, 2, 1, 4, 3}}, {1, {0, 1, 2}}}) {
    Case how;
    how.model = "simple_cnn";
    how.batches = {std::ssize(order)};
    how.distributed.sync_bn = true;
    how.step.micro_batch = part;
    how.steps = 5;
    const auto ranks = train_ranks(how, 2);
    expect_same(ranks[0].parameters, ranks[1].parameters);
    how.distributed = {};
    how.step.micro_batch = part + 1;
    how.order = order;
    const auto one = make_filled(how.model);
    const Trained expected = train(how, *one, nullptr);
    expect_close(ranks[0].parameters, expected.parameters, 1e-5);
    expect_close(ranks[0].buffers, expected.buffers, 1e-5);
  }
}

TEST(SyncBatchNorm, FollowsTheJointStatistics) {
  Case how;
  how.model = "simple_cnn";
  how.steps = 5;
  const auto one = make_filled(how.model);
  const Trained expected = train(how, *one, nullptr);
  how.distributed.sync_bn = true;
  ASSERT_FALSE(expected.buffers.empty());
  for (const Trained& rank : train_ranks(how, 2)) {
    ASSERT_EQ(rank.buffers.size(), expected.buffers.size());
    for (size_t i = 0; i < rank.buffers.size(); ++i)
      EXPECT_TRUE(at::allclose(rank.buffers[i].tensor, expected.buffers[i].tensor, 1e-5, 1e-5))
          << rank.buffers[i].name;
  }
}

// A collective that one rank alone started would wait for the others.
TEST(SyncBatchNorm, ChangesOneModelDuringItsLifetime) {
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 0; i < 4; ++i) models.push_back(make_filled("simple_cnn"));
  std::vector<std::vector<NamedTensor>> statistics(2);
  run_ranks(2, [&](Group& group) {
    const auto rank = size_t(group.rank());
    Model &model = *models[rank], &other = *models[rank + 2];
    const at::Tensor images = joint_batch(group.rank(), 4).images;
    {
      const SyncBatchNorm synced(model, group);
      if (rank == 0) other.forward(images);
      model.forward(images);
      statistics[rank] = copy_of(model.buffers());
    }
    if (rank == 0) model.forward(images);
  });
  expect_same(statistics[0], statistics[1]);
}

TEST(ShardedOptimizer, TrainsAsAWholeOneAndSavesItsState) {
  for (const char* name : {"sgd", "adamw", "lamb"}) {
    SCOPED_TRACE(name);
    Case how;
    how.optimizer = name;
    how.steps = 5;
    how.model = "simple_cnn";
    how.channels_last = name != std::string("lamb");
    how.distributed.sync_bn = true;
    const auto whole = train_ranks(how, 3);
    how.distributed.shard_optimizer = true;
    const auto sharded = train_ranks(how, 3);
    for (const Trained& rank : sharded) {
      expect_same(rank.parameters, whole[0].parameters);
      expect_close(rank.state, whole[0].state, 0);
    }
  }
}

TEST(ShardedOptimizer, EachRankKeepsItsPartAlone) {
  const auto model = make_filled("simple_cnn");
  const auto groups = make_parameter_groups(sgd(), model->parameters());
  int64_t all = 0, largest = 0;
  for (const auto& named : model->parameters()) {
    all += named.tensor.numel();
    largest = std::max(largest, named.tensor.numel());
  }
  std::mutex mutex;
  int64_t held_by_all = 0;
  run_ranks(2, [&](Group& group) {
    int64_t held = 0;
    make_sharded_optimizer(group, groups, [&](std::vector<ParameterGroup> own) {
      for (const auto& one : own)
        for (const auto& named : one.parameters) held += named.tensor.numel();
      return make_optimizer(sgd(), std::move(own));
    });
    EXPECT_LE(held, std::max(largest, all / 2 + largest / 2));
    const std::lock_guard lock(mutex);
    held_by_all += held;
  });
  EXPECT_EQ(held_by_all, all);
}

TEST(ShardedOptimizer, LoadsWhatAnyNumberOfProcessesSaved) {
  Case how;
  how.optimizer = "adamw";
  how.steps = 3;
  const auto model = make_filled("mlp");
  const Trained saved = train(how, *model, nullptr);
  std::vector<std::unique_ptr<Model>> models;
  for (int rank = 0; rank < 3; ++rank) models.push_back(make_filled("mlp"));
  run_ranks(3, [&](Group& group) {
    OptimizerOptions options = sgd();
    options.name = "adamw";
    const auto optimizer = make_sharded_optimizer(
        group, make_parameter_groups(options, models[size_t(group.rank())]->parameters()),
        [&](std::vector<ParameterGroup> own) { return make_optimizer(options, std::move(own)); });
    optimizer->load_state(saved.state);
    const auto state = optimizer->state();
    expect_same(state, saved.state);
  });
}

}  // namespace
}  // namespace saturate
