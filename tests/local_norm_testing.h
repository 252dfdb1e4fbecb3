// SyncBatchNorm's local work on shares of one batch, as the ranks of a group do it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "reduce/local_norm.h"
#include "tests/formula.h"

namespace saturate::testing {

struct NormedShares {
  std::vector<at::Tensor> outputs, to_inputs;  // by share, on the CPU, float
  at::Tensor to_weight, to_bias;               // summed over the shares
  at::Tensor running_mean, running_var;        // each share's own results were equal
};

constexpr int64_t kNormChannels = 5;
constexpr double kNormEps = 1e-5, kNormMomentum = 0.3;

inline at::Tensor norm_weight() {
  return symmetric("norm.weight", {kNormChannels}, 1) + 1.5;
}
inline at::Tensor norm_bias() {
  return symmetric("norm.bias", {kNormChannels}, 1);
}

// Runs all steps on inputs and output gradients [N, C, H, W] by share; N may be 0.
inline NormedShares norm_shares(const std::vector<at::Tensor>& inputs,
                                const std::vector<at::Tensor>& gradients, const at::Device& device,
                                at::ScalarType type, bool channels_last) {
  const LocalNorm& norm = local_norm(device);
  const at::Tensor weight = norm_weight().to(device), bias = norm_bias().to(device);
  const auto there = [&](const at::Tensor& tensor) {
    const at::Tensor moved = tensor.to(device).to(type);
    return channels_last ? moved.contiguous(at::MemoryFormat::ChannelsLast) : moved;
  };
  std::vector<at::Tensor> xs, rows, kept(inputs.size());
  for (const at::Tensor& input : inputs) {
    xs.push_back(norm.prepared(there(input)));
    rows.push_back(norm.statistics(xs.back(), kNormEps));
  }
  NormedShares found;
  std::vector<LocalNorm::Joint> joints;
  for (size_t i = 0; i < xs.size(); ++i) {
    RunningStatistics running{at::full({kNormChannels}, 0.25, weight.options()),
                              at::full({kNormChannels}, 2.0, weight.options()), kNormMomentum};
    joints.push_back(norm.join(xs[i], at::stack(rows), running, kNormEps));
    if (i > 0) {
      EXPECT_TRUE(running.mean.equal(found.running_mean)) << i;
      EXPECT_TRUE(running.var.equal(found.running_var)) << i;
    }
    found.running_mean = running.mean;
    found.running_var = running.var;
    found.outputs.push_back(
        norm.forward(xs[i], weight, bias, joints[i], kept[i]).to(at::kCPU, at::kFloat));
  }
  at::Tensor row;
  std::vector<at::Tensor> prepared;
  for (size_t i = 0; i < xs.size(); ++i) {
    prepared.push_back(norm.prepared_gradient(there(gradients[i]), kept[i]));
    const LocalNorm::Sums sums = norm.sums(prepared[i], kept[i], weight, joints[i]);
    row = row.defined() ? row + sums.row : sums.row;
    found.to_weight = i > 0 ? found.to_weight + sums.to_weight : sums.to_weight;
    found.to_bias = i > 0 ? found.to_bias + sums.to_bias : sums.to_bias;
  }
  for (size_t i = 0; i < xs.size(); ++i)
    found.to_inputs.push_back(
        norm.to_input(prepared[i], kept[i], weight, joints[i], row).to(at::kCPU, at::kFloat));
  for (at::Tensor* tensor :
       {&found.to_weight, &found.to_bias, &found.running_mean, &found.running_var})
    *tensor = tensor->to(at::kCPU);
  return found;
}

// Shares of as many images as `counts` says, of `side` pixels a side.
inline std::vector<at::Tensor> norm_images(const std::string& name,
                                           const std::vector<int64_t>& counts, int64_t side) {
  std::vector<at::Tensor> shares;
  for (const int64_t count : counts)
    shares.push_back(
        symmetric(name + std::to_string(shares.size()), {count, kNormChannels, side, side}, 2) +
        double(shares.size()));
  return shares;
}

// Whether a share, the first or a later one, has no image, or no channel has more than one value.
inline const std::vector<std::pair<std::vector<int64_t>, int64_t>> kNormCases = {
    {{3, 2}, 4}, {{0, 2, 1}, 4}, {{2, 0, 0}, 3}, {{1, 1}, 1}, {{0, 1}, 1}, {{0, 0}, 4}};

}  // namespace saturate::testing
