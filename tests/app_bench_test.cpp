// saturate bench: what scripts read.
#include <gtest/gtest.h>

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

TEST(Bench, MemoryGrowsWithTheRootOfTheDepthWhereCheckpointed) {
#ifdef NDEBUG
  const TempDir dir;
  const CommandResult result =
      run_saturate("bench memory --depths 16,64 --batch 2 --repeats 1 --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(read_text(dir / "b.json"))["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["name"], "depth=16 checkpointing=off");
  EXPECT_EQ(rows[3]["segments"], 8);
  EXPECT_GT(rows[2]["median"], 3.5 * double(rows[0]["median"]));
  EXPECT_LT(rows[3]["median"], 2.5 * double(rows[1]["median"]));
  EXPECT_GT(rows[3]["ms_per_step"], 0);
#endif
}

TEST(Bench, LoaderNamesWhatIsWrong) {
  expect_error(run_saturate("bench loader nothing:here"), 2, {"nothing"});
  expect_error(run_saturate("bench loader folder:absent --set augment.sise=9"), 2,
               {"augment.size"});
  expect_error(run_saturate("bench"), 2, {});
}

}  // namespace
}  // namespace saturate::testing
