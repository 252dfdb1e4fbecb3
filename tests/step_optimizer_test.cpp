// Optimizers, compared with torch.optim with fused=True, and timm's
// (tests/oracles/optimizer_goldens.py).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "saturate/optimizer.h"
#include "saturate/safetensors.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {

// The name of a parameterised test.
void PrintTo(const OptimizerOptions& options, std::ostream* out) {
  *out << options.name;
}

namespace {

using testing::symmetric;

const std::vector<std::pair<std::string, std::vector<int64_t>>> kShapes{
    {"conv", {8, 3, 3, 3}}, {"fc", {5, 37}}, {"late", {7, 3}}, {"bn", {19}}, {"bias", {1}}};

std::vector<NamedTensor> make_parameters(at::ScalarType type = at::kFloat) {
  std::vector<NamedTensor> parameters;
  for (const auto& [name, shape] : kShapes)
    parameters.push_back({name, symmetric(name, shape, 1).to(type).requires_grad_()});
  return parameters;
}

bool has_gradient(const std::string& name, int step) {
  if (name == "late") return step >= 10;
  return name != "bn" || step % 3 != 1;
}

void give_gradients(Optimizer& optimizer, const std::vector<NamedTensor>& parameters, int step) {
  optimizer.zero_grad();
  for (const auto& [name, tensor] : parameters) {
    if (!has_gradient(name, step)) continue;
    const std::string key = name + ".grad." + std::to_string(step);
    tensor.mutable_grad() = symmetric(key, tensor.sizes(), 0.5).to(tensor.scalar_type());
  }
}

void run_steps(Optimizer& optimizer, const std::vector<NamedTensor>& parameters, int from, int to) {
  at::set_num_threads(1);  // more threads for such small tensors only slow a busy machine down
  for (int step = from; step < to; ++step) {
    give_gradients(optimizer, parameters, step);
    optimizer.step(0.01 * (1 + step % 7));
  }
}

std::unique_ptr<Optimizer> optimizer_for(const OptimizerOptions& options,
                                         const std::vector<NamedTensor>& parameters) {
  return make_optimizer(options, make_parameter_groups(options, parameters));
}

// The parameters' values and the optimizer's state, by name.
std::map<std::string, at::Tensor> everything(Optimizer& optimizer,
                                             const std::vector<NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors[name] = tensor.detach();
  for (const auto& [name, tensor] : optimizer.state()) tensors[name] = tensor;
  return tensors;
}

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
  }
}

OptimizerOptions with_name(const std::string& name) {
  OptimizerOptions options;
  options.name = name;
  options.weight_decay = 1e-2;
  options.beta2 = 0.95;
  options.trust = 0.02;
  return options;
}

OptimizerOptions adamw() {
  return with_name("adamw");
}

std::map<std::string, at::Tensor> read_golden(const std::string& file) {
  std::map<std::string, at::Tensor> golden;
  const std::string path = testing::source_path("tests/goldens/step/") + file + ".safetensors";
  for (const auto& [name, tensor] : read_safetensors(Env::posix(), path).tensors)
    golden[name] = tensor;
  return golden;
}

void expect_golden(const std::string& file, const OptimizerOptions& options) {
  const std::string capability = at::get_cpu_capability() == "DEFAULT" ? ".default" : ".avx2";
  const auto golden = read_golden(file + capability);
  const auto parameters = make_parameters();
  const auto optimizer = optimizer_for(options, parameters);
  run_steps(*optimizer, parameters, 0, 100);
  expect_equal(everything(*optimizer, parameters), golden);
}

TEST(Optimizer, NesterovIsBitEqualToTorch) {
  expect_golden("sgd_nesterov", {});
}

TEST(Optimizer, MomentumIsBitEqualToTorch) {
  OptimizerOptions options;
  options.nesterov = false;
  expect_golden("sgd_momentum", options);
}

TEST(Optimizer, PlainSgdIsBitEqualToTorch) {
  OptimizerOptions options;
  options.momentum = 0;
  expect_golden("sgd_plain", options);
}

TEST(Optimizer, AdamWIsBitEqualToTorch) {
  expect_golden("adamw", adamw());
}

TEST(Optimizer, AdamIsBitEqualToTorch) {
  expect_golden("adam", with_name("adam"));
}

class Foreach : public ::testing::TestWithParam<std::string> {};

TEST_P(Foreach, EqualsItsReferenceInDoublePrecision) {
  const auto options = with_name(GetParam());
  const auto golden = read_golden(GetParam());
  const auto parameters = make_parameters(at::kDouble);
  const auto optimizer = optimizer_for(options, parameters);
  run_steps(*optimizer, parameters, 0, 100);
  for (const auto& [name, tensor] : parameters) {
    const double difference = (tensor.detach() - golden.at(name)).abs().max().item<double>();
    EXPECT_LT(difference, 1e-9) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer, Foreach, ::testing::Values("lars", "lamb", "rmsprop", "muon"),
                         [](const auto& tested) { return tested.param; });

class FoundInf : public ::testing::TestWithParam<std::string> {};

// As if the host checked the gradients; the first step is among the skipped ones.
TEST_P(FoundInf, SkipsTheStep) {
  const auto options = with_name(GetParam());
  const auto asked = make_parameters(), told = make_parameters();
  const auto host = optimizer_for(options, asked), device = optimizer_for(options, told);
  for (int step = 0; step < 20; ++step) {
    const bool overflow = step == 0 || step == 7 || step == 8;
    give_gradients(*host, asked, step);
    give_gradients(*device, told, step);
    if (overflow) told[1].tensor.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    if (!overflow) host->step(0.01);
    device->step(0.01, at::full({}, overflow ? 1.0 : 0.0, at::kFloat));
  }
  expect_equal(everything(*device, told), everything(*host, asked));
}

INSTANTIATE_TEST_SUITE_P(Optimizer, FoundInf,
                         ::testing::Values("sgd", "adam", "adamw", "lars", "lamb", "rmsprop",
                                           "muon"),
                         [](const auto& tested) { return tested.param; });

class Plain : public ::testing::TestWithParam<std::string> {};

TEST_P(Plain, AgreesWithTheFusedKernel) {
  auto options = with_name(GetParam());
  for (const bool nesterov : {true, false}) {
    options.nesterov = nesterov;
    const auto fused = make_parameters(at::kDouble), plain = make_parameters(at::kDouble);
    options.fused = true;
    const auto fused_optimizer = optimizer_for(options, fused);
    options.fused = false;
    const auto plain_optimizer = optimizer_for(options, plain);
    run_steps(*fused_optimizer, fused, 0, 50);
    run_steps(*plain_optimizer, plain, 0, 50);
    const auto expected = everything(*fused_optimizer, fused);
    for (const auto& [name, tensor] : everything(*plain_optimizer, plain)) {
      const double difference = (tensor - expected.at(name)).abs().max().item<double>();
      EXPECT_LT(difference, 1e-12) << name;
    }
  }
}

TEST_P(Plain, SkipsAnOverflowingStep) {
  auto options = with_name(GetParam());
  options.fused = false;
  const auto parameters = make_parameters();
  const auto optimizer = optimizer_for(options, parameters);
  give_gradients(*optimizer, parameters, 20);
  optimizer->step(0.01);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : everything(*optimizer, parameters))
    before[name] = tensor.clone();
  optimizer->step(0.01, at::full({}, 1.0, at::kFloat));
  expect_equal(everything(*optimizer, parameters), before);
}

INSTANTIATE_TEST_SUITE_P(Optimizer, Plain, ::testing::Values("sgd", "adam", "adamw", "muon"),
                         [](const auto& tested) { return tested.param; });

class Resume : public ::testing::TestWithParam<OptimizerOptions> {};

// At step 5 "late" has no state yet.
TEST_P(Resume, ContinuesBitEqually) {
  for (const int stop : {0, 5, 40}) {
    const auto straight = make_parameters(), stopped = make_parameters();
    const auto whole = optimizer_for(GetParam(), straight);
    run_steps(*whole, straight, 0, 60);

    const auto before = optimizer_for(GetParam(), stopped);
    run_steps(*before, stopped, 0, stop);
    const auto after = optimizer_for(GetParam(), stopped);
    after->load_state(before->state());
    run_steps(*after, stopped, stop, 60);
    expect_equal(everything(*after, stopped), everything(*whole, straight));
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer, Resume,
                         ::testing::Values(OptimizerOptions{}, with_name("adam"), adamw(),
                                           with_name("lars"), with_name("lamb"),
                                           with_name("rmsprop"), with_name("muon")),
                         [](const auto& tested) { return tested.param.name; });

TEST(Optimizer, LoadedStateIsACopy) {
  const auto parameters = make_parameters();
  const auto first = optimizer_for({}, parameters), second = optimizer_for({}, parameters);
  run_steps(*first, parameters, 0, 1);
  second->load_state(first->state());
  EXPECT_FALSE(second->state()[0].tensor.is_same(first->state()[0].tensor));
  EXPECT_TRUE(at::equal(second->state()[0].tensor, first->state()[0].tensor));
}

// A gradient and loaded state in another layout than the parameter's must be converted.
TEST(Optimizer, LayoutsMayDiffer) {
  auto rows = make_parameters(), last = make_parameters();
  rows.resize(1), last.resize(1);
  last[0].tensor.set_data(last[0].tensor.detach().contiguous(at::MemoryFormat::ChannelsLast));
  const auto contiguous = optimizer_for(adamw(), rows);
  run_steps(*contiguous, rows, 0, 3);
  const auto channels_last = optimizer_for(adamw(), last);
  run_steps(*channels_last, last, 0, 3);
  EXPECT_TRUE(at::equal(rows[0].tensor, last[0].tensor));

  channels_last->load_state(contiguous->state());
  run_steps(*contiguous, rows, 3, 6);
  run_steps(*channels_last, last, 3, 6);
  EXPECT_TRUE(at::equal(rows[0].tensor, last[0].tensor));
}

TEST(Optimizer, ParametersWithoutGradientAreNotChanged) {
  const auto parameters = make_parameters();
  const at::Tensor before = parameters[0].tensor.detach().clone();
  const auto optimizer = optimizer_for({}, parameters);
  optimizer->step(1);
  parameters[1].tensor.mutable_grad() = at::ones_like(parameters[1].tensor);
  optimizer->step(1);
  EXPECT_TRUE(at::equal(parameters[0].tensor, before));
  optimizer->zero_grad();
  EXPECT_FALSE(parameters[1].tensor.grad().defined());
}

void expect_refused(std::vector<NamedTensor> state, const std::string& reason) {
  const auto parameters = make_parameters();
  const auto optimizer = optimizer_for({}, parameters);
  try {
    optimizer->load_state(state);
    ADD_FAILURE() << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.reason();
  }
  // Nothing was loaded.
  EXPECT_FALSE(optimizer->state()[0].tensor.any().item<bool>());
}

TEST(Optimizer, StateThatDoesNotFitIsRefused) {
  const auto parameters = make_parameters();
  const auto optimizer = optimizer_for({}, parameters);
  run_steps(*optimizer, parameters, 0, 1);
  const auto state = optimizer->state();

  auto changed = state;
  changed.pop_back();
  expect_refused(changed, "missing");
  changed = state;
  changed.push_back({"other.momentum", state[0].tensor});
  expect_refused(changed, "unknown");
  changed = state;
  changed.push_back(state[0]);
  expect_refused(changed, "twice");
  changed = state;
  changed.back().tensor = at::empty({2}, at::kFloat);
  expect_refused(changed, "another shape");
  changed = state;
  changed.back().tensor = changed.back().tensor.to(at::kDouble);
  expect_refused(changed, "another type");
}

TEST(Optimizer, UnknownNameIsAUsageError) {
  OptimizerOptions options;
  options.name = "adamm";
  try {
    make_optimizer(options, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "optimizer.name");
  }
}

}  // namespace
}  // namespace saturate
