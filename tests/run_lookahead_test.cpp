// Slow weights compared with their formula, step by step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "run/weight_average.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// A weight, a statistic and a counter, each of one value.
class ThreeValues : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override { return images; }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {{"weight", weight}}; }
  std::vector<NamedTensor> buffers() override { return {{"mean", mean}, {"count", count}}; }
  void to(const at::Device&, bool) override {}

  // The changes that an optimizer and a BatchNorm would make.
  void step() {
    const at::NoGradGuard no_grad;
    weight.mul_(0.9).add_(1);
    mean.add_(0.25);
    count.add_(1);
  }

  at::Tensor weight = at::zeros({1}, at::kDouble).requires_grad_();
  at::Tensor mean = at::full({1}, 3, at::kDouble), count = at::zeros({1}, at::kLong);
};

TrainOptions lookahead_of(double keep, int every, double power) {
  TrainOptions options;
  options.lookahead = keep;
  options.lookahead_every = every;
  options.lookahead_power = power;
  return options;
}

// The paper's loop, in plain numbers.
struct SlowByHand {
  double weight = 0, mean = 3, slow_weight = 0, slow_mean = 3;

  void step(int64_t number, int64_t steps, const TrainOptions& options) {
    weight = weight * 0.9 + 1;
    mean += 0.25;
    if (number != steps && number % options.lookahead_every != 0) return;
    const double keep =
        options.lookahead * std::pow(double(number) / double(steps), options.lookahead_power);
    slow_weight = keep * slow_weight + (1 - keep) * weight;
    slow_mean = keep * slow_mean + (1 - keep) * mean;
    weight = slow_weight, mean = slow_mean;
  }
};

TEST(Lookahead, FollowsItsFormulaAndContinuesFromItsState) {
  for (const TrainOptions& options :
       {lookahead_of(0.5, 5, 0), lookahead_of(0.77, 3, 3), lookahead_of(0.2, 1, 1),
        lookahead_of(0.5, 50, 0)}) {  // longer than the run
    constexpr int64_t kSteps = 25;
    ThreeValues model;
    Lookahead first(model, options), second(model, options);
    SlowByHand expected;
    first.begin();
    for (int64_t number = 1; number <= kSteps; ++number) {
      model.step();
      if (number == 11) {
        second.load_state(first.state(), "test");
        second.begin();  // does not change the loaded state
      }
      (number < 11 ? first : second).update(number, kSteps);
      expected.step(number, kSteps, options);
      ASSERT_NEAR(model.weight.item<double>(), expected.weight, 1e-12) << number;
      ASSERT_NEAR(model.mean.item<double>(), expected.mean, 1e-12) << number;
      ASSERT_EQ(model.count.item<int64_t>(), number);
    }
  }
}

TEST(Lookahead, RefusesAnotherModelsState) {
  ThreeValues model;
  Lookahead lookahead(model, lookahead_of(0.5, 5, 0));
  EXPECT_TRUE(lookahead.state().empty());
  EXPECT_THROW(lookahead.load_state({{"weight", at::zeros({1}, at::kDouble)}}, "test"), Error);
}

}  // namespace
}  // namespace saturate
