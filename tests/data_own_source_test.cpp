// Sources that a program registers.
#include <gtest/gtest.h>

#include "saturate/data/dataset.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::MemoryDataset;

// "COUNT" or "URL/COUNT" noise images.
std::unique_ptr<Dataset> open_noise(Env&, const std::string& rest) {
  std::vector<std::string> files;
  const size_t count = std::stoul(rest.substr(rest.rfind('/') + 1));
  for (size_t i = 0; i < count; ++i) files.push_back(testing::noise_jpeg(8, 8, i));
  return std::make_unique<MemoryDataset>(std::move(files));
}

TEST(OwnSource, IsOpenedByItsSchemeWithTheRestOfTheText) {
  add_source("noise", "noise:COUNT, of a test", open_noise);
  EXPECT_EQ(open_dataset(Env::posix(), "noise:5")->size(), 5u);
  EXPECT_EQ(open_dataset(Env::posix(), "noise:https://host/3")->size(), 3u) << "its own affair";
  const Error again = error_of([] { add_source("noise", "another", open_noise); });
  EXPECT_EQ(again.exit_code(), 2);
  EXPECT_EQ(again.reason(), "there is a source \"noise:\" already");
}

TEST(OwnSource, ABuiltInSchemeCannotBeRegistered) {
  const Error error = error_of([] { add_source("folder", "another", open_noise); });
  EXPECT_EQ(error.reason(), "there is a source \"folder:\" already");
}

}  // namespace
}  // namespace saturate
