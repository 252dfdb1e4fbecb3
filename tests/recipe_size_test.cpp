// augment.size: a square, a height and a width, or sizes by epoch.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

constexpr const char* kSizeRecipe = "[data]\nsource = \"synth:\"\n";

std::string size_error(const std::vector<std::string>& overrides) {
  try {
    parse_recipe(kSizeRecipe, "r.toml", overrides);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SizeOption, IsASquareAHeightAndWidthOrAListByEpoch) {
  const auto parsed_size = [](const std::string& value) {
    const Recipe recipe = parse_recipe(kSizeRecipe, "r.toml", std::vector{"augment.size=" + value});
    EXPECT_EQ(parse_recipe(to_toml(recipe), "saved.toml").augment.size_changes,
              recipe.augment.size_changes);
    EXPECT_EQ(parse_recipe(to_toml(recipe), "saved.toml").augment.size, recipe.augment.size);
    return setting_of(recipe, "augment.size");
  };
  EXPECT_EQ(parsed_size("224"), "augment.size=224");
  EXPECT_EQ(parsed_size("0"), "augment.size=0");
  EXPECT_EQ(parsed_size("[224, 320]"), "augment.size=[224, 320]");
  EXPECT_EQ(parsed_size("[224, 224]"), "augment.size=224");
  EXPECT_EQ(parsed_size("[0:128, 6: 160, 12:192x224]"),
            "augment.size=[\"0:128\", \"6:160\", \"12:192x224\"]");
  const Recipe recipe = parse_recipe(
      kSizeRecipe, "r.toml", std::vector<std::string>{"augment.size=[\"0:128\", \"6:160x192\"]"});
  EXPECT_EQ(recipe.augment.size, ImageSize(160, 192));
  EXPECT_EQ(recipe.augment.of_epoch(5).size, ImageSize(128));
  EXPECT_EQ(recipe.augment.of_epoch(6).size, ImageSize(160, 192));
  for (const auto& [value, problem] : std::vector<std::pair<std::string, std::string>>{
           {"[224]", "is not a size"},
           {"[1, 2, 3]", "is not a size"},
           {"[]", "is not a size"},
           {"true", "is not a size"},
           {"224x320", "is not a size"},
           {"-1", "has -1"},
           {"4097", "has 4097, and a side has 1 to 4096 pixels"},
           {"[0, 32]", "has 0, and a side"},
           {"[32.5, 32]", "has 32.5"},
           {"[1:128]", "does not begin with epoch 0"},
           {"[0:128, 0:160]", "has epochs that do not increase"},
           {"[0:160, 4:128]", "shrinks from 160 to 128"},
           {"[0:64x80, 4:80x64]", "shrinks from 64x80 to 80x64"},
           {"[0:]", "has no epoch and size in \"0:\""},
           {"[0:12x, 3:4]", "has no epoch and size in \"0:12x\""},
           {"[0:1x2x3]", "has no epoch and size"},
           {"[128]", "is not a size"},
           {"[a:128]", "has no epoch and size"}})
    EXPECT_NE(size_error({"augment.size=" + value}).find("augment.size " + problem),
              std::string::npos)
        << value << ": " << size_error({"augment.size=" + value});
}

TEST(SizeOption, ByEpochExcludesACompiledStepAndHeldImages) {
  const std::string sizes = "augment.size=[0:16, 2:32]";
  EXPECT_NE(size_error({sizes, "data.cache=device"}).find("data.cache = device keeps"),
            std::string::npos);
  EXPECT_NE(size_error({sizes, "train.compiled=step.pt2"}).find("train.compiled is made for"),
            std::string::npos);
  EXPECT_EQ(size_error({sizes}), "no error");
  EXPECT_EQ(size_error({"augment.size=[0:32]", "data.cache=device"}), "no error") << "one size";
}

}  // namespace
}  // namespace saturate
