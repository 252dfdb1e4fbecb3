// The average of weights against torch's AveragedModel (tests/oracles/run_goldens.py).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>

#include "run/weight_average.h"
#include "saturate/safetensors.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

class ParametersOnly : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override { return images; }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return tensors; }
  std::vector<NamedTensor> buffers() override { return {}; }
  void to(const at::Device&, bool) override {}

  void fill(int update) {
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : tensors)
      tensor.copy_(testing::symmetric(name + "." + std::to_string(update), tensor.sizes(), 1));
  }

  std::vector<NamedTensor> tensors = {{"conv", at::zeros({4, 3, 3, 3}).requires_grad_()},
                                      {"fc", at::zeros({5, 37}).requires_grad_()},
                                      {"bias", at::zeros({1}).requires_grad_()}};
};

TrainOptions ema(double decay) {
  TrainOptions options;
  options.ema = decay;
  return options;
}

TEST(WeightAverage, FollowsTorchAndGoesOnFromItsState) {
  ParametersOnly model;
  WeightAverage first(model, ema(0.9)), second(model, ema(0.9));
  for (int update = 0; update < 50; ++update) {
    model.fill(update);
    if (update == 20) second.load_state(first.state(), "test");
    (update < 20 ? first : second).update();
  }
  const auto golden =
      read_safetensors(Env::posix(), testing::source_path("tests/goldens/run/ema.safetensors"));
  ASSERT_EQ(golden.tensors.size(), 3u);
  std::map<std::string, at::Tensor> averages;
  for (const auto& [name, tensor] : second.state()) averages[name] = tensor;
  for (const auto& [name, expected] : golden.tensors)
    EXPECT_TRUE(at::allclose(averages[name], expected, /*rtol=*/0, /*atol=*/1e-7)) << name;
}

TEST(WeightAverage, TheModelComputesWithItInsideAScopeOnly) {
  ParametersOnly model;
  WeightAverage average(model, ema(0.5));
  const at::Tensor parameter = model.tensors[0].tensor;
  { const WeightAverage::Scope nothing_yet(&average); }
  model.fill(0);
  const at::Tensor at_first = parameter.detach().clone();
  average.update();
  model.fill(1);
  const at::Tensor now = parameter.detach().clone();
  {
    const WeightAverage::Scope averaged(&average);
    EXPECT_TRUE(parameter.equal(at_first));
  }
  EXPECT_TRUE(parameter.equal(now));
  average.update();
  {
    const WeightAverage::Scope averaged(&average);
    EXPECT_TRUE(at::allclose(parameter, at::lerp(at_first, now, 0.5)));
  }
  EXPECT_TRUE(parameter.equal(now));
  EXPECT_TRUE(parameter.requires_grad());
}

TEST(WeightAverage, RefusesAnothersState) {
  ParametersOnly model;
  WeightAverage average(model, ema(0.5));
  const Error error = testing::error_of([&] {
    average.load_state({{"conv", at::zeros({2})}}, "some/file");
  });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(std::string(error.what()).find("tensor conv has shape [2]"), std::string::npos);
}

}  // namespace
}  // namespace saturate
