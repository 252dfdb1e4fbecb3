// Groups of parameters: decay, learning-rate factors, freezing.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>

#include "saturate/data/error.h"
#include "saturate/optimizer.h"

namespace saturate {
namespace {

std::vector<NamedTensor> parameters_of(const std::vector<std::string>& matrices,
                                       const std::vector<std::string>& vectors) {
  std::vector<NamedTensor> parameters;
  for (const auto& name : matrices) parameters.push_back({name, at::zeros({2, 3})});
  for (const auto& name : vectors) parameters.push_back({name, at::zeros({3})});
  for (auto& named : parameters) named.tensor.requires_grad_();
  return parameters;
}

// A small residual network's names, in the order of the model.
std::vector<NamedTensor> residual_network() {
  std::vector<NamedTensor> parameters;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    parameters.push_back({name, at::zeros(shape).requires_grad_()});
  };
  add("conv1.weight", {4, 3, 3, 3});
  add("bn1.weight", {4});
  add("bn1.bias", {4});
  for (const std::string block : {"layer1.0", "layer1.1", "layer2.0"}) {
    add(block + ".conv1.weight", {4, 4, 3, 3});
    add(block + ".bn1.weight", {4});
    add(block + ".downsample.0.weight", {4, 4, 1, 1});
  }
  add("fc.weight", {10, 4});
  add("fc.bias", {10});
  return parameters;
}

std::map<std::string, double> factors_of(const std::vector<ParameterGroup>& groups) {
  std::map<std::string, double> factors;
  for (const auto& group : groups)
    for (const auto& named : group.parameters) factors[named.name] = group.lr_factor;
  return factors;
}

void expect_groups_refused(const OptimizerOptions& options, const std::string& where,
                           const std::string& part) {
  try {
    make_parameter_groups(options, residual_network());
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), where);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(ParameterGroups, NormAndBiasDoNotDecayByDefault) {
  OptimizerOptions options;
  options.weight_decay = 0.25;
  const auto parameters = parameters_of({"a", "b", "c"}, {"d", "e"});
  const auto split = make_parameter_groups(options, parameters);
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(split[0].parameters.size(), 3u);
  EXPECT_EQ(split[0].weight_decay, 0.25);
  EXPECT_EQ(split[1].parameters.size(), 2u);
  EXPECT_EQ(split[1].weight_decay, 0);
  options.decay_norm_and_bias = true;
  EXPECT_EQ(make_parameter_groups(options, parameters).size(), 1u);
}

TEST(ParameterGroups, LayersLearnSlowerTowardsTheInput) {
  OptimizerOptions options;
  options.layer_decay = 0.5;
  const auto factors = factors_of(make_parameter_groups(options, residual_network()));
  EXPECT_EQ(factors.size(), residual_network().size());
  EXPECT_DOUBLE_EQ(factors.at("fc.weight"), 1);
  EXPECT_DOUBLE_EQ(factors.at("fc.bias"), 1);
  EXPECT_DOUBLE_EQ(factors.at("layer2.0.conv1.weight"), 0.5);
  EXPECT_DOUBLE_EQ(factors.at("layer2.0.downsample.0.weight"), 0.5);
  EXPECT_DOUBLE_EQ(factors.at("layer1.1.bn1.weight"), 0.25);
  EXPECT_DOUBLE_EQ(factors.at("layer1.0.conv1.weight"), 0.125);
  EXPECT_DOUBLE_EQ(factors.at("conv1.weight"), 0.0625);
  EXPECT_DOUBLE_EQ(factors.at("bn1.bias"), 0.0625) << "a norm belongs to the layer before it";
}

TEST(ParameterGroups, TransformerBlocksAreLayers) {
  OptimizerOptions options;
  options.layer_decay = 0.5;
  const auto parameters = parameters_of(
      {"class_token", "conv_proj.weight", "encoder.layers.encoder_layer_0.mlp.0.weight",
       "encoder.layers.encoder_layer_1.mlp.0.weight", "encoder.layers.encoder_layer_1.mlp.3.weight",
       "heads.head.weight"},
      {});
  const auto factors = factors_of(make_parameter_groups(options, parameters));
  EXPECT_DOUBLE_EQ(factors.at("heads.head.weight"), 1);
  EXPECT_DOUBLE_EQ(factors.at("encoder.layers.encoder_layer_1.mlp.0.weight"), 0.5);
  EXPECT_DOUBLE_EQ(factors.at("encoder.layers.encoder_layer_1.mlp.3.weight"), 0.5);
  EXPECT_DOUBLE_EQ(factors.at("encoder.layers.encoder_layer_0.mlp.0.weight"), 0.25);
  EXPECT_DOUBLE_EQ(factors.at("class_token"), 0.0625);
}

TEST(ParameterGroups, TheFirstMatchingPatternCounts) {
  OptimizerOptions options;
  options.lr_factors = {"fc.bias=3", "fc.*=1e1", "layer?.0.*=0"};
  const auto factors = factors_of(make_parameter_groups(options, residual_network()));
  EXPECT_DOUBLE_EQ(factors.at("fc.bias"), 3);
  EXPECT_DOUBLE_EQ(factors.at("fc.weight"), 10);
  EXPECT_DOUBLE_EQ(factors.at("layer2.0.conv1.weight"), 0);
  EXPECT_DOUBLE_EQ(factors.at("layer1.1.conv1.weight"), 1);
}

TEST(ParameterGroups, AFactorMultipliesTheRate) {
  OptimizerOptions options;
  options.momentum = 0;
  options.nesterov = false;
  options.weight_decay = 0;
  options.lr_factors = {"a=10"};
  const auto parameters = parameters_of({"a", "b"}, {});
  const auto optimizer = make_optimizer(options, make_parameter_groups(options, parameters));
  for (const auto& named : parameters) named.tensor.mutable_grad() = at::zeros({2, 3}).fill_(1);
  optimizer->step(0.5);
  EXPECT_FLOAT_EQ(parameters[0].tensor[1][2].item<float>(), -5);
  EXPECT_FLOAT_EQ(parameters[1].tensor[1][2].item<float>(), -0.5);
}

TEST(ParameterGroups, FrozenOnesNeedNoGradientAndAreInNoGroup) {
  OptimizerOptions options;
  options.freeze = {"conv1.*", "bn1.*"};
  const auto parameters = residual_network();
  const auto factors = factors_of(make_parameter_groups(options, parameters));
  EXPECT_EQ(factors.size(), parameters.size() - 3);
  EXPECT_FALSE(factors.contains("conv1.weight"));
  EXPECT_TRUE(factors.contains("layer1.0.conv1.weight"));
  for (const auto& [name, tensor] : parameters)
    EXPECT_EQ(tensor.requires_grad(), factors.contains(name)) << name;
}

TEST(ParameterGroups, AModelsFixedParametersAreInNoGroup) {
  const auto parameters = residual_network();
  parameters[1].tensor.requires_grad_(false);
  const auto factors = factors_of(make_parameter_groups({}, parameters));
  EXPECT_EQ(factors.size(), parameters.size() - 1);
  EXPECT_FALSE(factors.contains("bn1.weight"));
}

TEST(ParameterGroups, InvalidPatternsAreRefused) {
  OptimizerOptions options;
  options.freeze = {"stem*"};
  expect_groups_refused(options, "optimizer.freeze", "named conv1.weight, bn1.weight, bn1.bias");
  options.freeze = {"*"};
  expect_groups_refused(options, "optimizer.freeze", "nothing to train");
  options.freeze = {};
  for (const char* text : {"fc.*", "=3", "fc.*=", "fc.*=x", "fc.*=-1", "fc.*=1 ", "fc.*=nan"}) {
    options.lr_factors = {text};
    expect_groups_refused(options, "optimizer.lr_factors", "is not PATTERN=FACTOR");
  }
  options.lr_factors = {"head.*=2"};
  expect_groups_refused(options, "optimizer.lr_factors", "no parameter's name matches \"head.*\"");
}

}  // namespace
}  // namespace saturate
