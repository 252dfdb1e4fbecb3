// Schedules against torch.optim.lr_scheduler (tests/oracles/optimizer_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "saturate/schedule.h"
#include "tests/paths.h"

namespace saturate {
namespace {

ScheduleOptions schedule(const std::string& name, double final_lr) {
  ScheduleOptions options;
  options.name = name;
  options.final_lr = final_lr;
  return options;
}

TEST(Schedule, FollowsTorchForAThousandSteps) {
  std::ifstream file(testing::source_path("tests/goldens/step/schedules.json"));
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden.size(), 5u);
  for (const auto& row : golden) {
    const auto options = schedule(row["name"], row["final_lr"]);
    const int64_t warmup = row["warmup"], total = row["total"];
    for (int64_t step = 0; step < total; ++step) {
      const double expected = row["factors"][size_t(step)];
      ASSERT_NEAR(schedule_factor(options, step, warmup, total), expected, 1e-12 * expected)
          << options.name << " step " << step << " warmup " << warmup;
    }
  }
}

// torch's recursive form loses precision where the rate vanishes, so this has the closed form.
TEST(Schedule, CosineFallsToNothing) {
  const auto options = schedule("cosine", 0);
  for (int64_t step = 0; step < 1000; ++step) {
    const double half = std::acos(-1.0) * double(step) / 2000;
    ASSERT_NEAR(schedule_factor(options, step, 0, 1000), std::cos(half) * std::cos(half), 1e-15);
  }
  EXPECT_DOUBLE_EQ(schedule_factor(options, 1000, 0, 1000), 0);
}

TEST(Schedule, WarmupReachesOneAtItsLastStep) {
  const auto options = schedule("linear", 0.1);
  EXPECT_DOUBLE_EQ(schedule_factor(options, 0, 4, 10), 0.25);
  EXPECT_DOUBLE_EQ(schedule_factor(options, 3, 4, 10), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(options, 4, 4, 10), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(options, 7, 4, 10), 0.55);
}

TEST(Schedule, WarmupLongerThanTheRunIsARamp) {
  const auto options = schedule("cosine", 0);
  EXPECT_DOUBLE_EQ(schedule_factor(options, 9, 20, 10), 0.5);
}

TEST(Schedule, StaysAtTheEndAfterTheLastStep) {
  EXPECT_DOUBLE_EQ(schedule_factor(schedule("linear", 0.1), 25, 0, 10), 0.1);
}

TEST(Schedule, UnknownNameIsAUsageError) {
  try {
    schedule_factor(schedule("cosin", 0), 0, 0, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), "schedule.name");
    EXPECT_NE(error.remedy().find("cosine"), std::string::npos);
  }
}

}  // namespace
}  // namespace saturate
