// Packages of a compiled step: which are refused, and why. step_compiled_test.cpp runs some.
#include "step/step_package.h"

#include <gtest/gtest.h>

#include "saturate/data/error.h"
#include "step/compiled_step.h"
#include "tests/compiled_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::package_recipe;
using testing::TempDir;

// A package whose library is not one: everything else is checked before the library is loaded.
class PackageTest : public ::testing::Test {
 protected:
  PackageTest() {
    recipe.train.compiled = dir / "step.pt2";
    about = testing::describe_package(recipe, *model, library);
  }
  // The error of loading the package for `used`.
  std::string refusal(const Recipe& used) {
    testing::write_package(recipe.train.compiled, about, library);
    const auto other = testing::compiled_model(used);
    for (auto& [name, tensor] : other->parameters())
      if (name == frozen) tensor.requires_grad_(false);
    const Error error = error_of([&] { CompiledStep step(Env::posix(), used, *other); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), recipe.train.compiled);
    EXPECT_NE(error.remedy().find("tools/compile_step.py"), std::string::npos);
    return error.reason();
  }
  std::string refusal() { return refusal(recipe); }
  StepPackage read_written() {
    testing::write_package(recipe.train.compiled, about, library);
    return read_step_package(Env::posix(), recipe.train.compiled);
  }

  TempDir dir;
  Recipe recipe = package_recipe("simple_cnn");
  std::unique_ptr<Model> model = testing::compiled_model(recipe);
  std::string library = "no library", frozen;
  nlohmann::json about;
};

constexpr const char* kUnusable = "the compiled step cannot be used: ";

TEST_F(PackageTest, AMatchingPackageIsRefusedOnlyForItsLibrary) {
  EXPECT_TRUE(refusal().starts_with(std::string(kUnusable) + "its library does not load: "))
      << refusal();
}

TEST_F(PackageTest, EachDifferingSettingIsNamedWithBothValues) {
  Recipe other = recipe;
  other.train.label_smoothing = 0;
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for train.label_smoothing 0.1, not 0.0");
  other = recipe;
  other.train.batch = 32;
  other.train.accumulate = 2;
  other.precision.mode = PrecisionMode::kBf16;
  EXPECT_EQ(refusal(other), std::string(kUnusable) +
                                "it was made for micro-batches of 8 samples, not 16; "
                                "precision.mode \"fp32\", not \"bf16\"");
  other = recipe;
  other.augment.size = 20;
  EXPECT_EQ(refusal(other), std::string(kUnusable) + "it was made for augment.size 16, not 20");
  other = recipe;
  other.model.classes = 7;
  EXPECT_EQ(refusal(other), std::string(kUnusable) + "it was made for model.classes 10, not 7");
  other = recipe;
  other.model.name = "mlp";
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for model.name \"simple_cnn\", not \"mlp\"");
  other = recipe;
  other.train.channels_last = false;
  EXPECT_EQ(refusal(other),
            std::string(kUnusable) + "it was made for train.channels_last true, not false");
}

TEST_F(PackageTest, AnotherTorchOrAMissingProcessorFeatureIsNamed) {
  about["torch"] = "2.10.1";
  about["processor"] = {"sse2", "avx4096"};
  EXPECT_EQ(refusal(), std::string(kUnusable) + "it was made for torch 2.10.1, not " TORCH_VERSION
                                                "; a processor with avx4096");
  const std::string version = TORCH_VERSION;  // packages fit all patches of a minor release
  about["torch"] = version.substr(0, version.rfind('.')) + ".99";
  EXPECT_EQ(refusal(), std::string(kUnusable) + "it was made for a processor with avx4096");
}

TEST_F(PackageTest, AnotherKindOfGpuIsNamed) {
  const auto reason = [&](const std::string& own) {
    const StepPackage package = read_written();
    return error_of([&] { require_fit(package, recipe, *model, 1, own); }).reason();
  };
  const std::string made_for = std::string(kUnusable) + "it was made for ";
  about["settings"]["train.device"] = "cpu";
  recipe.train.device = "cuda";
  EXPECT_EQ(reason("sm_90"), made_for + "train.device \"cpu\", not \"cuda\"");
  about["settings"]["train.device"] = "cuda";
  EXPECT_EQ(reason("sm_90"), made_for + "a GPU of an unnamed architecture, not sm_90");
  about["architecture"] = "sm_80";
  EXPECT_EQ(reason("sm_90"), made_for + "a GPU of sm_80, not sm_90");
  about["architecture"] = "sm_90";
  require_fit(read_written(), recipe, *model, 1, "sm_90");
  EXPECT_EQ(gpu_architecture(at::kCPU), "");
  about["architecture"] = 90;
  EXPECT_NE(refusal().find("type"), std::string::npos) << refusal();
}

TEST_F(PackageTest, TheFirstDifferingTensorIsNamed) {
  const auto reason_without = [&](const auto& change) {
    const nlohmann::json before = about;
    change();
    const std::string reason = refusal();
    about = before;
    return reason;
  };
  EXPECT_NE(reason_without([&] {
              about["parameters"][0]["name"] = "stem";
            }).find("a model without the parameter conv1.conv.weight"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["parameters"].push_back(about["parameters"][0]);
              about["parameters"].back()["name"] = "extra";
            }).find("a model with the parameter extra"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["parameters"][0]["strides"] = {27, 9, 3, 1};
            })
                .find("conv1.conv.weight [32, 3, 3, 3] with strides [27, 9, 3, 1] Float, not "
                      "[32, 3, 3, 3] with strides [27, 1, 9, 3] Float"),
            std::string::npos);
  EXPECT_NE(reason_without([&] { about["buffers"][0]["type"] = "Half"; }).find("running_mean"),
            std::string::npos);
  EXPECT_NE(reason_without([&] {
              about["gradients"].erase(0);
            }).find("a model whose conv1.conv.weight is frozen"),
            std::string::npos);
}

TEST_F(PackageTest, AGradientOfAFrozenParameterIsAccepted) {
  frozen = "conv1.conv.weight";
  about["gradients"].erase(0);
  EXPECT_NE(refusal().find("does not load"), std::string::npos) << refusal();
}

TEST_F(PackageTest, AFileThatIsNotAPackageIsRefused) {
  const auto reason = [&] {
    return error_of([&] { CompiledStep step(Env::posix(), recipe, *model); }).reason();
  };
  EXPECT_NE(reason().find("No such file"), std::string::npos) << reason();
  testing::write_file(recipe.train.compiled, "not a zip file at all");
  EXPECT_NE(reason().find("not a PT2 archive, or it is truncated or damaged"), std::string::npos)
      << reason();
  about["format"] = 9;
  EXPECT_NE(refusal().find("its format is 9, and this version reads 2"), std::string::npos);
  about["format"] = 2;
  about.erase("settings");
  EXPECT_NE(refusal().find("settings"), std::string::npos) << refusal();
}

TEST_F(PackageTest, DamageIsDetectedBeforeAnyCodeIsLoaded) {
  testing::write_package(recipe.train.compiled, about, library);
  std::string bytes = testing::read_text(recipe.train.compiled);
  const auto at = bytes.find(library);
  ASSERT_NE(at, std::string::npos);
  const auto reason_of = [&](const std::string& text) {
    testing::write_file(recipe.train.compiled, text);
    return error_of([&] { CompiledStep step(Env::posix(), recipe, *model); }).reason();
  };
  std::string flipped = bytes;
  flipped[at + 3] ^= 1;
  EXPECT_NE(reason_of(flipped).find("its library is damaged"), std::string::npos);
  for (size_t length = 0; length < bytes.size(); length += 97)
    EXPECT_TRUE(reason_of(bytes.substr(0, length)).starts_with(kUnusable)) << length;
}

TEST(CompileStep, DistinguishesDropoutFromAttentionWithoutIt) {
  const TempDir dir;
  const std::string command = "python3 '" + testing::source_path("tests/compile_step_test.py") +
                              "' >'" + (dir / "log") + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << testing::read_text(dir / "log");
}

}  // namespace
}  // namespace saturate
