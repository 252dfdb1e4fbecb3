// Models as ONNX files: their graphs, read back, and what is refused.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <protozero/pbf_reader.hpp>
#include <set>

#include "model/onnx_file.h"
#include "saturate/data/error.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/onnx_testing.h"

namespace saturate {
namespace {

using at::Tensor;
using testing::error_of;
using testing::Function;
using testing::FunctionModel;
using testing::small_model;
using testing::TempDir;

struct ReadGraph {
  std::vector<std::string> ops;
  std::set<std::string> inputs, outputs, weights;  // of all nodes; names
};

ReadGraph read_graph(const std::string& path) {
  const std::string bytes = testing::read_text(path);
  ReadGraph graph;
  protozero::pbf_reader file(bytes);
  EXPECT_TRUE(file.next(7));
  protozero::pbf_reader fields = file.get_message();
  while (fields.next()) {
    if (fields.tag() == 1) {
      for (protozero::pbf_reader node = fields.get_message(); node.next();)
        if (node.tag() == 1)
          graph.inputs.insert(node.get_string());
        else if (node.tag() == 2)
          graph.outputs.insert(node.get_string());
        else if (node.tag() == 4)
          graph.ops.push_back(node.get_string());
        else
          node.skip();
    } else if (fields.tag() == 5) {
      protozero::pbf_reader tensor = fields.get_message();
      EXPECT_TRUE(tensor.next(8));
      graph.weights.insert(tensor.get_string());
    } else {
      fields.skip();
    }
  }
  return graph;
}

// Each input is there, each output is used, and no weight is missing or stored twice.
void expect_whole(const std::string& path, Model& model, const std::string& input_name) {
  ReadGraph graph = read_graph(path);
  for (const NamedTensor& parameter : model.parameters())
    EXPECT_TRUE(graph.weights.contains(parameter.name)) << parameter.name;
  for (const NamedTensor& buffer : model.buffers())
    EXPECT_NE(graph.weights.contains(buffer.name), buffer.name.ends_with("num_batches_tracked"))
        << buffer.name;
  std::set<std::string> known = graph.outputs;
  known.insert(graph.weights.begin(), graph.weights.end());
  known.insert({input_name, ""});
  for (const std::string& input : graph.inputs) EXPECT_TRUE(known.contains(input)) << input;
  for (const std::string& weight : graph.weights)
    EXPECT_TRUE(graph.inputs.contains(weight)) << weight;
  EXPECT_TRUE(graph.outputs.contains("logits"));
}

TEST(Onnx, GraphsAreWholeAndNameTheWeights) {
  const TempDir dir;
  for (const std::string name :
       {"mlp", "airbench", "se_resnet18", "mobilenet_v2", "vit_tiny", "toy_cnn", "unet"}) {
    SCOPED_TRACE(name);
    const auto model = small_model(name, 32);
    export_onnx(Env::posix(), dir / "model.onnx", *model, 32);
    expect_whole(dir / "model.onnx", *model, "images");
  }
  for (const auto& [name, shape] : testing::tensor_models()) {
    SCOPED_TRACE(name);
    const ModelInput input = testing::tensor_input(shape);
    const auto model = small_model(name, input);
    export_onnx(Env::posix(), dir / "model.onnx", *model, input);
    expect_whole(dir / "model.onnx", *model, "input");
  }
}

Error refusal(const Function& function, std::vector<NamedTensor> buffers = {}) {
  const TempDir dir;
  FunctionModel model(function, std::move(buffers));
  return error_of([&] {
    export_onnx(Env::posix(), dir / "x.onnx", model, 8, {{"model", "mine"}});
  });
}

TEST(Onnx, AnOperatorThatIsNotSupportedIsNamed) {
  const Error error = refusal([](const Tensor& x) { return at::roll(x, 1, 3); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "mine");
  EXPECT_EQ(error.reason(),
            "the model cannot be exported to ONNX: it uses aten::roll, which is not supported");
}

// An argument that the graph would not have.
TEST(Onnx, ArgumentsThatAreNotSupportedAreNamed) {
  const auto reason = [](const Function& function) { return refusal(function).reason(); };
  EXPECT_NE(reason([](const Tensor& x) { return at::round(x, 2); }).find("round with decimals"),
            std::string::npos);
  EXPECT_NE(
      reason([](const Tensor& x) { return at::softplus(x, 1, 1); }).find("softplus with a thresh"),
      std::string::npos);
}

TEST(Onnx, WhatATraceDoesNotRecordIsRefused) {
  const auto reason = [](const Function& function) { return refusal(function).reason(); };
  EXPECT_NE(reason([](const Tensor& x) {
              return x.view({x.size(0), 192});
            }).find("aten::view fails on 3 images: shape '[2, 192]' is invalid"),
            std::string::npos);
  EXPECT_NE(reason([](const Tensor& x) {
              return at::stack(x.unbind(0));
            }).find("a list as long as the batch"),
            std::string::npos);
  EXPECT_NE(reason([](const Tensor& x) {
              return x * x.max().item<double>();
            }).find("which a trace does not record"),
            std::string::npos);
  EXPECT_NE(reason([](const Tensor& x) {
              return x.mean(at::IntArrayRef({0, 1}));
            }).find("logits of each image"),
            std::string::npos);
  EXPECT_NE(reason([](const Tensor& x) {
              return at::batch_norm(x, {}, {}, at::zeros(3), at::ones(3), true, 0.1, 1e-5, false);
            }).find("batch_norm with the statistics of a batch"),
            std::string::npos);
}

// A view of part of a tensor that is written, and a buffer that evaluation counts up.
TEST(Onnx, WritesThatAGraphCannotExpressAreRefused) {
  EXPECT_NE(refusal([](const Tensor& x) {
              Tensor y = x * 2;
              y.narrow(1, 0, 1).add_(1);
              return y;
            })
                .reason()
                .find("a tensor that was written in place"),
            std::string::npos);
  const Tensor counter = at::zeros(1);
  EXPECT_NE(refusal([&](const Tensor& x) { return x * counter.add_(1); }, {{"counter", counter}})
                .reason()
                .find("aten::add_ on its own weights or buffers"),
            std::string::npos);
}

TEST(Onnx, AModelAboveTheLimitOfAFileIsRefused) {
  OnnxModel model;
  const std::byte one{};
  model.weights.push_back({"w", OnnxType::kUint8, {1}, {&one, size_t{1} << 31}});
  const Error error = error_of([&] { to_onnx(model, "x.onnx"); });
  EXPECT_EQ(error.where(), "x.onnx");
  EXPECT_NE(error.reason().find("2 GiB"), std::string::npos);
}

}  // namespace
}  // namespace saturate
