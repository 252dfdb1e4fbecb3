// Steps of several processes, compared with Python's DDP.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include <algorithm>

#include "saturate/gradient_reducer.h"
#include "saturate/optimizer.h"
#include "saturate/safetensors.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::run_ranks;
using testing::symmetric;

// The network of tests/oracles/distributed_goldens.py: two layers, and one that is unused.
struct Net {
  std::vector<NamedTensor> parameters;
  at::Tensor forward(const at::Tensor& x) const {
    const auto tensor = [&](size_t i) { return parameters[i].tensor; };
    return at::linear(at::tanh(at::linear(x, tensor(0), tensor(1))), tensor(2), tensor(3));
  }
};

Net make_net() {
  Net net;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"first.weight", {16, 6}}, {"first.bias", {16}},      {"second.weight", {3, 16}},
      {"second.bias", {3}},      {"unused.weight", {4, 4}}, {"unused.bias", {4}}};
  for (const auto& [name, shape] : shapes)
    net.parameters.push_back({name, symmetric(name, shape, 0.5).requires_grad_()});
  return net;
}

void train_net(Net& net, Group& group, const DistributedOptions& options, int parts,
               int steps = 20) {
  GradientReducer reducer(group, net.parameters, options);
  OptimizerOptions how;
  how.nesterov = false;
  how.weight_decay = 0;
  const auto optimizer = make_optimizer(how, make_parameter_groups(how, net.parameters));
  for (int step = 0; step < steps; ++step) {
    const at::Tensor places = at::arange(group.rank(), 8, group.world());
    const auto images =
        symmetric("images." + std::to_string(step), {8, 6}, 2).index_select(0, places).chunk(parts);
    const auto labels = (places % 3).chunk(parts);
    for (int part = 0; part < parts; ++part) {
      const bool last = part + 1 == parts;
      if (last) reducer.before_forward();
      const at::Tensor loss =
          at::cross_entropy_loss(net.forward(images[size_t(part)]), labels[size_t(part)]);
      reducer.backward(loss * (double(labels[size_t(part)].size(0)) / 8), last);
    }
    optimizer->step(0.1);
    optimizer->zero_grad();
  }
}

struct GoldenCase {
  std::string file;
  int parts = 1;
  Compress compress = Compress::kNone;
  int powersgd_rank = 1;
  int steps = 20;
};

TEST(GradientReducer, TrainsLikePythonsDdp) {
  for (const GoldenCase& how : {GoldenCase{"ddp"}, GoldenCase{"ddp_no_sync", 2},
                                GoldenCase{"powersgd_1", 1, Compress::kPowerSgd, 1, 5},
                                GoldenCase{"powersgd_2", 1, Compress::kPowerSgd, 2}}) {
    const auto golden = read_safetensors(
        Env::posix(), testing::source_path("tests/goldens/reduce/" + how.file + ".safetensors"));
    DistributedOptions options;
    options.find_unused = true;
    options.compress = how.compress;
    options.powersgd_rank = how.powersgd_rank;
    std::vector<Net> nets = {make_net(), make_net()};
    run_ranks(2, [&](Group& group) {
      train_net(nets[size_t(group.rank())], group, options, how.parts, how.steps);
    });
    for (const auto& [name, tensor] : nets[0].parameters) {
      const auto found = std::find_if(golden.tensors.begin(), golden.tensors.end(),
                                      [&](const auto& one) { return one.name == name; });
      ASSERT_NE(found, golden.tensors.end()) << name;
      EXPECT_LE((tensor - found->tensor).abs().max().item<double>(), 1e-6)
          << name << " " << how.file;
    }
  }
}

TEST(GradientReducer, NamesUnusedParameters) {
  std::vector<Net> nets = {make_net(), make_net()};
  run_ranks(2, [&](Group& group) {
    const Error error = error_of([&] { train_net(nets[size_t(group.rank())], group, {}, 1); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.reason(),
              "the loss does not depend on some parameters: unused.weight, unused.bias");
    EXPECT_NE(error.remedy().find("distributed.find_unused"), std::string::npos);
  });
}

}  // namespace
}  // namespace saturate
