// Keys with many dots, which toml++ would turn into as many tables.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "recipe/toml_depth.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;

std::string many(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(TomlDepth, AKeyWithAMillionDotsIsRefused) {
  const std::string deep = many("a.", 1'000'000);
  for (const std::string& line :
       {deep + "b = 1", "[" + deep + "b]", "x = {" + deep + "b = 1}",
        "x = {y = 1, " + deep + "b = 1}", many("\"a\" . 'b' . ", 500'000) + "b = 1",
        "x = {y = \"\"\"t\"\"\"\", " + deep + "b = 1}"}) {
    const Error error = error_of([&] { parse_recipe("seed = 1\n" + line + "\n", "r.toml"); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "r.toml:2") << line.substr(0, 40);
  }
  const std::vector<std::string> set = {"augment.size={" + deep + "b=1}"};
  EXPECT_EQ(error_of([&] { parse_recipe("[data]\nsource = \"synth:\"\n", "r.toml", set); }).kind(),
            ErrorKind::kUsage);
}

TEST(TomlDepth, DotsElsewhereAreNoKeys) {
  const std::string dots(100, '.');
  for (const std::string& line :
       {"a.b.\"c" + dots + "\" = 1", "x = '" + dots + "'", "x = \"\\\"" + dots + "\"",
        "x = \"\"\"\n\"" + dots + "\n\"\"\"\"", "x = '''\n'" + dots + "'''",
        "# it's " + dots + "\nx = 1", "x = [" + many("1.5, ", 50) + "]", many("a.b = 1.5\n", 20)})
    EXPECT_EQ(find_deep_key(line), std::string::npos) << line;
}

}  // namespace
}  // namespace saturate
