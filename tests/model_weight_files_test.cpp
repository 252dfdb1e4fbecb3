// Weight files as training scripts save them (tests/oracles/weights_goldens.py): with other values
// beside the tensors, several sets of weights, prefixes of names.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <string>

#include "saturate/data/error.h"
#include "saturate/module_model.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/array_testing.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

std::string golden_file(const std::string& name) {
  return testing::source_path("tests/goldens/weights/") + name;
}

std::unique_ptr<Model> cnn_to_fill() {
  at::manual_seed(5);
  ModelOptions options;
  options.name = "simple_cnn";
  options.width = 0.0625;
  return make_model(options, {10, 16, Env::posix()});
}

// The file's tensors are those of the formula, and `more`.
void expect_filled(const std::string& path, const std::string& prefix, double more = 0) {
  SCOPED_TRACE(path + " " + prefix);
  const auto model = cnn_to_fill(), expected = cnn_to_fill();
  const LoadedWeights loaded = load_weights(Env::posix(), path, *model, {}, prefix);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(loaded.taken.size(), model->parameters().size() + model->buffers().size());
  for (const auto member : {&Model::parameters, &Model::buffers}) {
    const auto found = (model.get()->*member)(), filled = (expected.get()->*member)();
    for (size_t i = 0; i < filled.size(); ++i) {
      testing::fill(filled[i]);
      EXPECT_TRUE(at::equal(found[i].tensor, at::add(filled[i].tensor, more))) << found[i].name;
    }
  }
}

TEST(WeightFiles, OtherValuesAreIgnoredAndCompiledNamesAreSupported) {
  for (const char* name : {"beside1.pt", "beside2.pt", "beside5.pt", "beside_legacy.pt"})
    expect_filled(golden_file(name), "");
}

TEST(WeightFiles, AveragedWeightsAreLoadedOnRequestOrIfAlone) {
  for (const char* name : {"beside1.pt", "beside_legacy.pt"})
    for (const char* prefix : {"model_ema.", "model_ema", "model_ema.module."})
      expect_filled(golden_file(name), prefix, 1);
  expect_filled(golden_file("only_ema.pt"), "");
}

// As of a run with train.ema=0.9 after a step: the average keeps 0.9 of the weights before it.
TEST(WeightFiles, AveragesOfACheckpointAreTakenByAPrefixToo) {
  const TempDir dir;
  const at::Tensor before = at::full({2, 2}, 1.0), after = at::full({2, 2}, 2.0);
  const at::Tensor average = before * 0.9 + after * 0.1, bias = at::full({2}, 7.0);
  const std::string path = dir / "step.safetensors";
  write_safetensors(Env::posix(), path,
                    {{"model.backbone.fc.weight", after},
                     {"model.backbone.fc.bias", bias},
                     {"model.head.weight", after * 5},
                     {"average.backbone.fc.weight", average},
                     {"average.head.weight", average * 5}},
                    {});
  struct Part : torch::nn::Module {
    torch::nn::Linear fc = register_module("fc", torch::nn::Linear(2, 2));
    at::Tensor forward(const at::Tensor& x) { return fc(x); }
  };
  for (const char* prefix : {"backbone", "backbone.", "model.backbone", "model.backbone."}) {
    SCOPED_TRACE(prefix);
    const auto model = make_module_model<Part>();
    const LoadedWeights loaded = load_weights(Env::posix(), path, *model, {}, prefix);
    EXPECT_TRUE(loaded.averaged);
    EXPECT_TRUE(at::equal(model->parameters()[0].tensor, average));
    EXPECT_TRUE(at::equal(model->parameters()[1].tensor, bias)) << "of which there is no average";
  }
}

TEST(WeightFiles, APrefixSelectsOneOfTwoEncoders) {
  const std::string path = golden_file("two_encoders.pt");
  for (const char* prefix : {"encoder_q.", "encoder_q", "module.encoder_q."})
    expect_filled(path, prefix);
  expect_filled(path, "state_dict.module.encoder_k.", 1);
  const auto model = cnn_to_fill();
  const Error error = error_of([&] { load_weights(Env::posix(), path, *model); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), path);
  EXPECT_EQ(error.remedy(), "Set model.weights_prefix=module.encoder_k.");
}

TEST(WeightFiles, AnUnknownPrefixIsRefused) {
  const auto model = cnn_to_fill();
  const Error error = error_of(
      [&] { load_weights(Env::posix(), golden_file("beside2.pt"), *model, {}, "teacher."); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "model.weights_prefix");
  EXPECT_EQ(error.reason(), "no name in the file begins with \"teacher.\"");
}

TEST(WeightFiles, WeightsUnderAnUnusualKeyAreNamed) {
  const std::string path = golden_file("generator.pt");
  const auto model = cnn_to_fill();
  const Error error = error_of([&] { load_weights(Env::posix(), path, *model); });
  EXPECT_EQ(error.where(), path);
  EXPECT_NE(error.reason().find("\"generator.\""), std::string::npos) << error.reason();
  EXPECT_NE(error.remedy().find("model.weights_prefix"), std::string::npos) << error.remedy();
  expect_filled(path, "generator.");
}

TEST(WeightFiles, TensorsWithAttributesAreRead) {
  const auto tensors = read_weights(Env::posix(), golden_file("attributes.pt"));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(at::equal(tensors[0].tensor, at::arange(4).to(at::kFloat)));
  EXPECT_TRUE(at::equal(tensors[1].tensor, at::arange(3).to(at::kFloat)));
}

// A safetensors file begins with the length of its header, here 640: 0x80 0x02, like a pickle.
TEST(WeightFiles, ALengthThatLooksLikeAPickleIsNotOne) {
  const TempDir dir;
  const std::string path = dir / "w.safetensors";
  char begin[2] = {};
  for (size_t size = 500; begin[0] != '\x80' || begin[1] != 2; ++size) {
    ASSERT_LT(size, 1000u);
    write_safetensors(Env::posix(), path, {{"w", at::zeros({2})}}, {{"x", std::string(size, 'x')}});
    std::ifstream(path, std::ios::binary).read(begin, 2);
  }
  EXPECT_EQ(read_weights(Env::posix(), path).at(0).name, "w");
}

// Tensors of 4096 floats: "0", whose storage is data/0, and so on.
std::string large_tensors(int count) {
  const auto text = [](const std::string& word) {
    return "U" + std::string(1, char(word.size())) + word;
  };
  const std::string elements("M\0\x10", 3);
  std::string pickle = "\x80\x02}";
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    pickle += text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
              "ctorch\nFloatStorage\n" + text(name) + text("cpu") + elements + "tQK" +
              std::string(1, '\0') + elements + "\x85K\1\x85\x89NtRs";
  }
  return pickle + ".";
}

// A small file could take any amount of memory.
TEST(WeightFiles, RecordsThatShareBytesAreRefused) {
  const TempDir dir;
  const auto write = [&](int tensors) {
    testing::ZipText zip(/*deflated=*/false);
    zip.add("a/version", "3\n");
    zip.add("a/data.pkl", large_tensors(tensors));
    zip.add("a/data/0", std::string(4096 * 4, '\0'));
    for (int i = 1; i < tensors; ++i) zip.add_name("a/data/" + std::to_string(i));
    testing::write_file(dir / "w.pt", zip.text());
  };
  write(1);
  EXPECT_EQ(read_weights(Env::posix(), dir / "w.pt").at(0).tensor.numel(), 4096);
  write(3);
  const Error error = error_of([&] { read_weights(Env::posix(), dir / "w.pt"); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("its tensors have more bytes than the file"), std::string::npos)
      << error.reason();
}

TEST(WeightFiles, AVersionThatIsNoNumberIsRefusedNamingTheFile) {
  const TempDir dir;
  testing::ZipText zip(/*deflated=*/false);
  zip.add("a/version", std::string(30, '9'));
  zip.add("a/data.pkl", large_tensors(1));
  testing::write_file(dir / "w.pt", zip.text());
  const Error error = error_of([&] { read_weights(Env::posix(), dir / "w.pt"); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(error.where(), dir / "w.pt");
}

}  // namespace
}  // namespace saturate
