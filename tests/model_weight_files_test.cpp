// Files of weights as training scripts save them (tests/oracles/weights_goldens.py): with other
// things beside the tensors, several sets of them, names behind prefixes.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <fstream>

#include "saturate/data/error.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
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

TEST(WeightFiles, WhatLiesBesideTheTensorsIsPassedOverAndCompiledNamesAreKnown) {
  for (const char* name : {"beside1.pt", "beside2.pt", "beside5.pt", "beside_legacy.pt"})
    expect_filled(golden_file(name), "");
}

TEST(WeightFiles, AveragedOnesAreTakenWhereTheyAreAskedForOrAlone) {
  for (const char* name : {"beside1.pt", "beside_legacy.pt"})
    for (const char* prefix : {"model_ema.", "model_ema", "model_ema.module."})
      expect_filled(golden_file(name), prefix, 1);
  expect_filled(golden_file("only_ema.pt"), "");
}

TEST(WeightFiles, OneOfTwoEncodersIsNamedByItsPrefix) {
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

TEST(WeightFiles, APrefixThatNoNameHasIsRefused) {
  const auto model = cnn_to_fill();
  const Error error = error_of(
      [&] { load_weights(Env::posix(), golden_file("beside2.pt"), *model, {}, "teacher."); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "model.weights_prefix");
  EXPECT_EQ(error.reason(), "no name in the file begins with \"teacher.\"");
}

TEST(WeightFiles, WhereWeightsAreNotLookedForTheKeyIsNamed) {
  const std::string path = golden_file("generator.pt");
  const auto model = cnn_to_fill();
  const Error error = error_of([&] { load_weights(Env::posix(), path, *model); });
  EXPECT_EQ(error.where(), path);
  EXPECT_NE(error.reason().find("\"generator.\""), std::string::npos) << error.reason();
  EXPECT_NE(error.remedy().find("model.weights_prefix"), std::string::npos) << error.remedy();
  expect_filled(path, "generator.");
}

TEST(WeightFiles, TensorsWithAttributesAreTensors) {
  const auto tensors = read_weights(Env::posix(), golden_file("attributes.pt"));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(at::equal(tensors[0].tensor, at::arange(4).to(at::kFloat)));
  EXPECT_TRUE(at::equal(tensors[1].tensor, at::arange(3).to(at::kFloat)));
}

// A safetensors file begins with the length of its header, 640 here: 0x80 0x02, as a pickle does.
TEST(WeightFiles, ALengthThatLooksLikeAPickleIsNone) {
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

}  // namespace
}  // namespace saturate
