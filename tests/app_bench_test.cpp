// saturate bench: what scripts read.
#include <gtest/gtest.h>

#include <set>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

const std::string kLoader =
    "bench loader synth:size=40,count=12,classes=2 --set augment.size=24 --set train.batch=5 "
    "--repeats 3 --seconds 0.001";

TEST(Bench, LoaderWritesARowForEveryVariant) {
#ifndef NDEBUG
  expect_error(run_saturate(kLoader), 2, {"debug build"});
#else
  const TempDir dir;
  const CommandResult result = run_saturate(kLoader + " --threads 1,2 --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("fast fp32 threads=2"), std::string::npos) << result.out;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "loader");
  EXPECT_GE(json["host"]["cores"], 1);
  EXPECT_TRUE(json["commit"].is_string());
  ASSERT_EQ(json["rows"].size(), 8u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["unit"], "images/s");
    EXPECT_EQ(row["n"], 3);
    EXPECT_GT(row["min"], 0);
    EXPECT_LE(row["min"], row["median"]);
    EXPECT_LE(row["median"], row["max"]);
    EXPECT_GT(row["cpu_ms_per_image"], 0);
  }
#endif
}

TEST(Bench, AugmentWritesARowForEveryOperation) {
#ifndef NDEBUG
  GTEST_SKIP() << "a debug build refuses";
#endif
  const TempDir dir;
  const CommandResult result = run_saturate(
      "bench augment synth:size=40,count=3,classes=2 --set augment.size=24 --set augment.hue=0.1 "
      "--repeats 2 --seconds 0 --threads 1,2 --json " +
      (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "augment");
  ASSERT_EQ(json["rows"].size(), 32u);
  EXPECT_EQ(json["rows"][0]["operation"], "crop and resize");
  EXPECT_EQ(json["rows"][31]["name"], "recipe threads=2");
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["unit"], "images/s/core");
    EXPECT_EQ(row["n"], 2);
    EXPECT_GT(row["min"], 0);
    EXPECT_GT(row["us_per_image"], 0);
  }
}

TEST(Bench, LoaderNamesWhatIsWrong) {
  expect_error(run_saturate("bench loader nothing:here"), 2, {"nothing"});
  expect_error(run_saturate("bench loader folder:absent --set augment.sise=9"), 2,
               {"augment.size"});
  expect_error(run_saturate("bench"), 2, {});
}

TEST(Bench, StorageWritesRatesOfEverySourceAndOrder) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 20);
  const std::string folder = "folder:" + (dir / "set"), shard = "shard:" + (dir / "s.shard");
  ASSERT_EQ(run_saturate("data pack " + folder + " --out " + shard).exit_code, 0);
  const std::string command =
      "bench storage " + folder + " " + shard + " --threads 1,2 --repeats 2 --samples 15 --block 3";
#ifndef NDEBUG
  expect_error(run_saturate(command), 2, {"debug build"});
#else
  const CommandResult result = run_saturate(command + " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "storage");
  std::set<std::string> variants;
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["n"], 2);
    EXPECT_GT(row["min"], 0);
    EXPECT_TRUE(row["unit"] == "samples/s" || row["unit"] == "MB/s");
    variants.insert(row["source"].get<std::string>() + row["order"].get<std::string>() +
                    row["cold"].dump() + row["threads"].dump() + row["unit"].get<std::string>());
  }
  EXPECT_EQ(variants.size(), 2u * 3 * 2 * 2 * 2);
#endif
  expect_error(run_saturate("bench storage nothing:here"), 2, {"nothing"});
  expect_error(run_saturate("bench storage"), 2, {"SOURCE"});
}

}  // namespace
}  // namespace saturate::testing
