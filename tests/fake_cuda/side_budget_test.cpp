// Further budgets of host work in a GPU run: an evaluation, a save, SyncBatchNorm's own work, and
// the time marks of phases.
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "reduce/local_norm.h"
#include "run/checkpoint.h"
#include "run/staged_copy.h"
#include "tests/fake_cuda/host_testing.h"

namespace saturate::testing {
namespace {

class SideBudget : public OnFakeCuda {
 protected:
  const at::Device device{at::kCUDA, 0};
};

// The largest count of any step of a run.
int64_t most(const HostRun& run, Count count) {
  int64_t found = 0;
  for (const Counts& step : run.steps) found = std::max(found, of(step, count));
  return found;
}

// At its beginning and end: for the stages in progress, for the losses of the steps before it, and
// for its results (metrics and answers by class); the latter two are copied to pageable memory.
// With watch.samples also for the images with the highest losses.
TEST_F(SideBudget, AnEvaluationsWaitsDoNotDependOnItsBatches) {
  for (const auto& [images, samples] : {std::pair(20, 0), {200, 0}, {20, 4}, {200, 4}}) {
    SCOPED_TRACE(std::to_string(images) + " images, samples " + std::to_string(samples));
    const int of_samples = samples > 0 ? 2 : 0;
    const std::string held_out =
        "data.eval_source=synth:size=16,split=test,count=" + std::to_string(images);
    const HostRun run = run_on_host(
        host_recipe({"pipeline.copy=true", held_out, "train.eval_every=[\"1 epoch\", \"6 steps\"]",
                     "watch.samples=" + std::to_string(samples)}),
        dir / "run");
    ASSERT_EQ(run.result.steps, kHostSteps);
    const Counts& evaluated = run.steps[11];
    std::printf("%-24s %s\n", "Evaluation", to_text(evaluated).c_str());
    EXPECT_GE(of(evaluated, Count::kTwins), images / 10) << "this step has an evaluation";
    EXPECT_LE(of(evaluated, Count::kWaits), 9 + 2 * of_samples) << run.sites;
    EXPECT_LE(of(evaluated, Count::kPageableCopies), 3 + of_samples) << run.sites;
  }
}

TEST_F(SideBudget, ASaveWaitsOnlyInTheWriterThread) {
  CheckpointStore store(Env::posix(), dir.path(), CheckpointOptions{});
  CheckpointWriter writer(Env::posix(), store, make_staged_copy(device));
  Checkpoint checkpoint;
  checkpoint.model = {{"filter", at::zeros({64, 32, 3, 3}, device)},
                      {"bias", at::zeros({64}, device)}};
  fake_cuda::control()->take_sites();
  for (const int64_t step : {1, 2, 3}) {
    checkpoint.position.step = step;
    const Counts before = counts_now();
    writer.start(checkpoint);
    const auto outcome = writer.wait();
    ASSERT_TRUE(outcome && !outcome->error);
    const Counts cost = counts_now() - before;
    const std::string sites = fake_cuda::control()->take_sites();
    std::printf("%-24s %s\n", "Save", to_text(cost).c_str());
    EXPECT_LE(of(cost, Count::kWaits), 1) << sites;
    EXPECT_EQ(sites.find("CheckpointWriter::start"), std::string::npos) << sites;
    EXPECT_EQ(of(cost, Count::kPageableCopies), 0) << sites;
    EXPECT_EQ(of(cost, Count::kDeviceAllocations), 0);
    if (step > 1) {
      EXPECT_EQ(of(cost, Count::kPinnedAllocations), 0);
    }
  }
}

TEST_F(SideBudget, SyncBatchNormsOwnWorkDoesNotWait) {
  constexpr int64_t kChannels = 5;
  const LocalNorm& norm = local_norm(device);
  const auto floats = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor weight = at::full({kChannels}, 1.5, floats),
                   bias = at::zeros({kChannels}, floats);
  const RunningStatistics running{at::full({kChannels}, 0.25, floats),
                                  at::full({kChannels}, 2.0, floats), 0.1};
  const at::Tensor images = at::zeros({4, kChannels, 6, 6}, floats);
  fake_cuda::control()->take_sites();
  const Counts before = counts_now();
  const at::Tensor x = norm.prepared(images);
  const at::Tensor row = norm.statistics(x, 1e-5);
  const LocalNorm::Joint joint = norm.join(x, at::stack({row, row}), running, 1e-5);
  at::Tensor kept;
  const at::Tensor output = norm.forward(x, weight, bias, joint, kept);
  const at::Tensor gradient = norm.prepared_gradient(output, kept);
  const LocalNorm::Sums sums = norm.sums(gradient, kept, weight, joint);
  norm.to_input(gradient, kept, weight, joint, sums.row);
  const Counts cost = counts_now() - before;
  std::printf("%-24s %s\n", "SyncBatchNorm", to_text(cost).c_str());
  EXPECT_GE(of(cost, Count::kLaunches), 5) << "the work itself";
  EXPECT_EQ(of(cost, Count::kWaits), 0) << fake_cuda::control()->take_sites();
  EXPECT_EQ(of(cost, Count::kPageableCopies), 0);
}

// Marks of the phases and of the streams' work. A captured step has none inside.
TEST_F(SideBudget, DeviceTimesTakeADozenMarksPerStep) {
  const std::vector<std::string> held = {"data.cache=device", "pipeline.copy=false"};
  const HostRun plain = run_on_host(host_recipe(held), dir / "plain");
  std::printf("%-24s %s\n", "Marks", to_text(plain.steps[kSettled]).c_str());
  EXPECT_GE(of(plain.steps[kSettled], Count::kEvents), 3) << "forward, backward, optimizer";
  EXPECT_LE(of(plain.steps[kSettled], Count::kEvents), 12);
  std::vector<std::string> graphed = held;
  graphed.push_back("train.graph=auto");
  const HostRun replayed = run_on_host(host_recipe(graphed), dir / "graph");
  std::printf("%-24s %s\n", "Marks, graph", to_text(replayed.steps[kSettled]).c_str());
  EXPECT_EQ(most(replayed, Count::kCapturedEvents), 0);
  EXPECT_LE(of(replayed.steps[kSettled], Count::kEvents), 10);
}

}  // namespace
}  // namespace saturate::testing
