// Exported models in ONNX Runtime and ONNX's checker (make onnx-test).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/language_testing.h"
#include "tests/onnx_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using at::Tensor;
using testing::Function;
using testing::FunctionModel;
using testing::model_names;
using testing::small_model;
using testing::symmetric;
using testing::TempDir;

// By $SATURATE_PYTHON or python3.
class OnnxRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("SATURATE_PYTHON");
    python = given ? given : "python3";
    if (std::system(("'" + python + "' -c 'import onnx, onnxruntime' >/dev/null 2>&1").c_str()) !=
        0)
      GTEST_SKIP() << "no Python with onnx and onnxruntime: set SATURATE_PYTHON to one to run this";
  }

  void add(const std::string& name, Model& model, int size) {
    add(name, model, ModelInput{10, size, Env::posix()}, [size](int64_t count) {
      return symmetric("images", {count, 3, size, size}, 2);
    });
  }

  void add(const std::string& name, Model& model, const ModelInput& input,
           const std::function<Tensor(int64_t count)>& samples) {
    SCOPED_TRACE(name);
    const at::NoGradGuard no_grad;
    std::vector<NamedTensor> tensors;
    for (const int64_t count : {1, 3}) {
      const Tensor images = samples(count);
      tensors.push_back({"images" + std::to_string(count), images});
      tensors.push_back({"logits" + std::to_string(count), model.forward(images).contiguous()});
    }
    write_safetensors(Env::posix(), dir / (name + ".safetensors"), tensors, {});
    ASSERT_NO_THROW(
        export_onnx(Env::posix(), dir / (name + ".onnx"), model, input, {{"model", name}}));
    names.insert(name);
  }

  // All that were added, in one process.
  void expect_equal_logits() {
    const std::string script = testing::source_path("tests/oracles/run_onnx.py");
    const std::string command =
        "'" + python + "' '" + script + "' '" + dir.path() + "' >'" + (dir / "found.json") + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
    const auto found = nlohmann::json::parse(testing::read_text(dir / "found.json"));
    EXPECT_EQ(found.size(), names.size());
    for (const std::string& name : names)
      for (const char* count : {"1", "3"}) {
        const auto& row = found.at(name).at(count);
        EXPECT_GT(row.at("scale").get<double>(), 1e-3) << name;
        EXPECT_LT(row.at("worst").get<double>(), 1e-5 * row.at("scale").get<double>()) << name;
      }
  }

  TempDir dir;
  std::string python;
  std::set<std::string> names;
};

// model_names() has all models of images.
TEST(OnnxModels, NoOtherModelOfTextTensorsOrFilesIsRegistered) {
  std::set<std::string> computed{"gpt_tiny", "gpt_micro", "gpt_mini", "gpt2", "torchscript"};
  for (const std::string& name : model_names()) computed.insert(name);
  for (const auto& [name, shape] : testing::tensor_models()) computed.insert(name);
  for (const auto& model : models())
    EXPECT_TRUE(computed.contains(std::string(model.name))) << model.name;
}

TEST_F(OnnxRuntime, ComputesTheLogitsOfAllModels) {
  for (const std::string& name : model_names()) add(name, *small_model(name, 32), 32);
  expect_equal_logits();
}

TEST_F(OnnxRuntime, ComputesTheLogitsOfImagesThatAreNotSquare) {
  for (const char* name : {"simple_cnn", "resnet18", "mobilenet_v2", "unet"}) {
    const ImageSize size(32, 64);
    const auto model = small_model(name, size);
    add(name, *model, ModelInput{10, size, Env::posix()}, [](int64_t count) {
      return symmetric("images", {count, 3, 32, 64}, 2);
    });
  }
  expect_equal_logits();
}

TEST_F(OnnxRuntime, ComputesTheLogitsOfLanguageModels) {
  for (const auto& [name, attention] :
       {std::pair("fused", Attention::kSdpa), std::pair("unfused", Attention::kNaive)}) {
    const auto model = testing::language_model("gpt_tiny", attention);
    testing::fill_all(*model);
    add(name, *model, testing::language_input(),
        [](int64_t count) { return testing::tokens("tokens", count); });
  }
  expect_equal_logits();
}

// gpt2 with its twelve layers and a quarter of its width: 21 MB, which would be 340.
TEST_F(OnnxRuntime, ComputesTheLogitsOfDeepLanguageModels) {
  const ModelInput input = testing::language_input();
  const auto samples = [](int64_t count) { return testing::tokens("tokens", count); };
  for (const char* name : {"gpt_micro", "gpt_mini"}) {
    const auto model = testing::language_model(name);
    testing::fill_all(*model);
    add(name, *model, input, samples);
  }
  add("gpt2", *small_model("gpt2", input), input, samples);
  expect_equal_logits();
}

TEST_F(OnnxRuntime, ComputesTheOutputsOfModelsOfTensors) {
  for (const auto& [name, shape] : testing::tensor_models()) {
    const ModelInput input = testing::tensor_input(shape);
    add(name, *small_model(name, input), input,
        [&](int64_t count) { return symmetric("input", input.batch_shape(count), 2); });
  }
  expect_equal_logits();
}

// Loops, lists, branches, and sizes computed from the number of images.
void save_program(const std::string& path) {
  torch::jit::Module program("__torch__.Own");
  program.register_attribute("training", c10::BoolType::get(), true);
  program.register_parameter("weight", symmetric("weight", {384, 10}, 0.1).requires_grad_(), false);
  program.register_parameter("token", symmetric("token", {1, 384}, 1).requires_grad_(), false);
  program.register_parameter("kernel", symmetric("kernel", {3, 3, 3, 3}, 1), false);
  program.define(R"(
    def forward(self, images):
        found = []
        x = torch.conv2d(images, self.kernel, None, [1, 1], "same")
        for i in range(2):
            x = torch.relu(x * 0.5 - 0.125 * i)
            found.append(x)
        if self.training:
            x = x + 1.0
        both = torch.cat(found, 1).view(images.size(0), -1)
        token = self.token.expand(images.size(0), -1)
        if both.size(1) == 384:
            both = both + token
        return torch.matmul(both, self.weight)
  )");
  program.save(path);
}

TEST_F(OnnxRuntime, ComputesTheLogitsOfTorchScriptPrograms) {
  const std::string goldens = testing::source_path("tests/goldens/weights/");
  save_program(dir / "own.pt");
  for (const auto& [name, path, size] :
       {std::tuple("scripted", goldens + "scripted.pt", 16),
        std::tuple("traced", goldens + "traced.pt", 16), std::tuple("own", dir / "own.pt", 8)}) {
    ModelOptions options;
    options.name = "torchscript";
    options.file = path;
    const auto model = make_model(options, {10, size, Env::posix()});
    model->set_training(false);
    add(name, *model, size);
  }
  expect_equal_logits();
}

Tensor weight(at::IntArrayRef sizes, double scale = 0.5) {
  return symmetric("weight", sizes, scale);
}

// Takes images [N, 3, 8, 8], as all that follow. Constants are made outside the functions: a trace
// would record their making instead of their values.
std::map<std::string, Function> arithmetic() {
  const auto positive = [](const Tensor& x) { return x.abs() + 0.5; };
  const Tensor one = weight({1, 3, 1, 1}), slopes = weight({3});
  return {
      {"unary1", [=](const Tensor& x) { return x.tanh().erf().sin() + x.exp().sigmoid().cos(); }},
      {"unary2", [=](const Tensor& x) { return positive(x).log() - positive(x).sqrt().neg(); }},
      {"unary3",
       [=](const Tensor& x) { return x.floor() + 2 * x.ceil() + 3 * x.round() + x.sign(); }},
      {"unary4", [=](const Tensor& x) { return positive(x).reciprocal() * positive(x).rsqrt(); }},
      {"square", [=](const Tensor& x) { return x.square() + at::pow(x, 3); }},
      {"gates",
       [=](const Tensor& x) { return at::hardswish(x) + at::hardsigmoid(x) + at::silu(x); }},
      {"units", [=](const Tensor& x) { return at::selu(x) + at::elu(x, 0.5) + at::mish(x); }},
      {"gelu", [=](const Tensor& x) { return at::gelu(x) + 2 * at::gelu(x, "tanh"); }},
      {"slopes",
       [=](const Tensor& x) {
         return at::leaky_relu(x, 0.3) + at::prelu(x, slopes) + at::softplus(x);
       }},
      {"clips",
       [=](const Tensor& x) {
         return at::clamp(x, -1, 0.5) + at::relu6(4 * x) + at::clamp_min(x, 0.1) +
                at::clamp_max(x, 0.2) + at::hardtanh(x, -0.5, 1.5) + at::clamp(x, one - 1, one);
       }},
      {"sums", [=](const Tensor& x) { return at::add(x, one, 3) - at::sub(one, x, 2); }},
      {"rsub", [=](const Tensor& x) { return at::rsub(x, one, 2) * at::maximum(x, one); }},
      {"quotients",
       [=](const Tensor& x) { return x / 3 + at::div(x, one, "floor") + at::minimum(x, one) / 7; }},
      {"types", [=](const Tensor& x) { return (x.to(at::kDouble) * 0.3 + 1).to(at::kFloat); }},
      {"reductions",
       [=](const Tensor& x) {
         return x.mean({2, 3}, true) + x.sum({3}, true) + x.amax({1}, true) + x.amin({-1}, true) +
                at::linalg_vector_norm(x, 2, at::IntArrayRef({1}), true);
       }},
      {"softmax", [=](const Tensor& x) { return at::softmax(x, 1) + at::log_softmax(x, -1); }},
      {"in_place",
       [=](const Tensor& x) {
         Tensor y = x * 2;
         const Tensor same = y;
         y.add_(x).relu_();
         return y + same;
       }},
  };
}

std::map<std::string, Function> convolutions() {
  const Tensor kernel = weight({6, 1, 3, 3}), turned = weight({3, 4, 3, 3}), scales = weight({6});
  const Tensor even = weight({4, 3, 4, 3}), row = weight({4, 3, 5});
  return {
      {"conv",
       [=](const Tensor& x) {
         return at::conv2d(x, kernel, scales, {2, 1}, {1, 0}, {1, 2}, 3);
       }},
      {"conv_same", [=](const Tensor& x) { return at::conv2d(x, even, {}, 1, "same", 2); }},
      {"conv_transpose",
       [=](const Tensor& x) { return at::conv_transpose2d(x, turned, {}, 2, 1, 1); }},
      {"conv1d", [=](const Tensor& x) { return at::conv1d(x.flatten(2), row, {}, 3); }},
      {"max_pool", [=](const Tensor& x) { return at::max_pool2d(x, 3, 2, 1, 1, true); }},
      {"max_pool_dilated", [=](const Tensor& x) { return at::max_pool2d(x, 2, 3, 0, 2); }},
      {"avg_pool", [=](const Tensor& x) { return at::avg_pool2d(x, 3, 2, 1, false, false); }},
      {"adaptive",
       [=](const Tensor& x) {
         return at::adaptive_avg_pool2d(x, {4, 2}) + at::adaptive_avg_pool2d(x, {1, 1}) +
                std::get<0>(at::adaptive_max_pool2d(x, {4, 2}));
       }},
      {"group_norm",
       [=](const Tensor& x) {
         return at::group_norm(at::conv2d(x, kernel, scales, {1, 2}, {1, 1}, {1, 1}, 3), 2, scales,
                               scales);
       }},
      {"nearest",
       [=](const Tensor& x) {
         return at::upsample_nearest2d(x, {16, 24});
       }},
      {"bilinear",
       [=](const Tensor& x) {
         return at::upsample_bilinear2d(x, {16, 12}, false) +
                at::upsample_bilinear2d(x, {16, 12}, true);
       }},
      {"bicubic",
       [=](const Tensor& x) {
         return at::upsample_bicubic2d(x, {16, 16}, false);
       }},
  };
}

// Images as volumes [N, 3, 4, 4, 4].
std::map<std::string, Function> volumes() {
  const auto cubes = [](const Tensor& x) { return x.reshape({-1, 3, 4, 4, 4}); };
  const Tensor kernel = weight({6, 1, 3, 3, 3}), turned = weight({3, 4, 2, 2, 2}),
               six = weight({6});
  return {
      {"conv3d",
       [=](const Tensor& x) {
         return at::conv3d(cubes(x), kernel, six, {2, 1, 1}, 1, 1, 3);
       }},
      {"conv_transpose3d",
       [=](const Tensor& x) { return at::conv_transpose3d(cubes(x), turned, {}, 2); }},
      {"max_pool3d", [=](const Tensor& x) { return at::max_pool3d(cubes(x), 2); }},
      {"avg_pool3d", [=](const Tensor& x) { return at::avg_pool3d(cubes(x), 3, 1, 1); }},
      {"adaptive3d",
       [=](const Tensor& x) {
         return at::adaptive_avg_pool3d(cubes(x), {2, 2, 4}) +
                std::get<0>(at::adaptive_max_pool3d(cubes(x), {1, 1, 1}));
       }},
      {"nearest3d",
       [=](const Tensor& x) {
         return at::upsample_nearest3d(cubes(x), {8, 8, 4});
       }},
      {"trilinear",
       [=](const Tensor& x) {
         return at::upsample_trilinear3d(cubes(x), {8, 8, 4}, false);
       }},
  };
}

std::map<std::string, Function> layers() {
  const Tensor three = weight({3}), variance = three.abs() + 1, eight = weight({8});
  const Tensor matrix = weight({5, 8}), five = weight({5}), wide = weight({192, 4}, 0.1);
  const Tensor four = weight({4}), mask = weight({16, 16});
  const Tensor seen = (mask > 0.3).logical_or(at::eye(16) > 0);
  return {
      {"batch_norm",
       [=](const Tensor& x) {
         return at::batch_norm(x, {}, three, three, variance, false, 0.1, 1e-3, false);
       }},
      {"layer_norm",
       [=](const Tensor& x) {
         return at::layer_norm(x, {8, 8}) + at::layer_norm(x, {8}, eight, eight, 1e-3);
       }},
      {"linear", [=](const Tensor& x) { return at::linear(x, matrix, five); }},
      {"addmm", [=](const Tensor& x) { return at::addmm(four, x.flatten(1), wide, 2, 0.5); }},
      {"bmm", [=](const Tensor& x) { return at::bmm(x.flatten(2), x.flatten(2).transpose(1, 2)); }},
      {"attention",
       [=](const Tensor& x) {
         const Tensor y = x.flatten(2).unflatten(2, {16, 4});
         return at::scaled_dot_product_attention(y, y, y, mask, 0, false, 0.7) +
                at::scaled_dot_product_attention(y, y, y, {}, 0, true) +
                at::scaled_dot_product_attention(y, y, y, seen);
       }},
  };
}

std::map<std::string, Function> shapes() {
  const Tensor token = weight({1, 1, 8, 8}), channels = weight({1, 4, 1, 1});
  const Tensor order = at::tensor({2, 0});
  return {
      {"reshapes",
       [=](const Tensor& x) {
         return x.view({-1, 192}).unflatten(1, {3, 64}).unsqueeze(1).squeeze(1).flatten(1) +
                x.reshape({-1, 12, 16}).flatten(1);
       }},
      {"permutes",
       [=](const Tensor& x) {
         return x.permute({0, 2, -1, 1}).contiguous().flatten(1) + x.swapaxes(-1, 1).flatten(1) +
                x.transpose(2, 3).clone().flatten(1);
       }},
      {"expands",
       [=](const Tensor& x) {
         return at::cat({token.expand_as(x.narrow(1, 0, 1)), x}, 1) + channels.expand({1, 4, 8, 8});
       }},
      {"repeats",
       [=](const Tensor& x) {
         return x.narrow(1, 0, 1).repeat({1, 3, 1, 2});
       }},
      {"joins",
       [=](const Tensor& x) {
         return at::stack({x, 2 * x}, -1).flatten(1);
       }},
      {"selects",
       [=](const Tensor& x) { return x.select(1, -1) + x.select(1, 0) * x.unbind(1).at(1); }},
      {"slices",
       [=](const Tensor& x) {
         return x.slice(2, 1, 7, 3) + x.slice(2, -2) + x.narrow(2, -3, 2) + x.slice(2, 0, 2, 1);
       }},
      {"splits",
       [=](const Tensor& x) {
         const auto a = x.split(3, 3), b = x.split_with_sizes({5, 3}, 2), c = x.chunk(3, 1);
         return at::cat({a[2].sum({2, 3}), b[1].sum({2, 3}), c[1].sum({2, 3})}, 1);
       }},
      {"index", [=](const Tensor& x) { return x.index_select(1, order); }},
      {"shuffle",
       [=](const Tensor& x) {
         return at::pixel_shuffle(at::cat({x, 2 * x, 3 * x, x}, 1), 2);
       }},
      {"pads",
       [=](const Tensor& x) {
         return at::pad(x, {1, 2, 0, 1}) + at::pad(x, {1, 2, 0, 1}, "reflect") +
                at::pad(x, {1, 2, 0, 1}, "replicate") + at::constant_pad_nd(x, {1, 2, 1, 0}, 0.5);
       }},
  };
}

TEST_F(OnnxRuntime, ComputesEveryOperatorAsTorchDoes) {
  for (const auto& cases : {arithmetic(), convolutions(), volumes(), layers(), shapes()})
    for (const auto& [name, function] : cases) {
      FunctionModel model(function);
      add(name, model, 8);
    }
  expect_equal_logits();
}

}  // namespace
}  // namespace saturate
