#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/ordered.h"

namespace saturate {
namespace {

TEST(Ordered, ConsumesInOrderForAnyNumberOfThreads) {
  for (int threads : {1, 2, 7}) {
    std::vector<size_t> seen;
    for_each_ordered<size_t>(
        500, threads, [](size_t i, size_t& slot) { slot = i * i; },
        [&](size_t i, size_t& slot) {
          EXPECT_EQ(slot, i * i);
          seen.push_back(i);
        });
    EXPECT_EQ(seen.size(), 500u);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  }
}

TEST(Ordered, TheFirstFailureInOrderIsThrown) {
  const auto run = [](size_t bad_consume) {
    std::string message;
    try {
      for_each_ordered<int>(
          300, 4,
          [](size_t i, int&) {
            if (i == 40 || i == 41 || i == 200) throw std::runtime_error(std::to_string(i));
          },
          [&](size_t i, int&) {
            if (i == bad_consume) throw std::runtime_error("consume");
          });
    } catch (const std::exception& error) {
      message = error.what();
    }
    return message;
  };
  for (int round = 0; round < 20; ++round) EXPECT_EQ(run(1000), "40");
  EXPECT_EQ(run(7), "consume");
}

}  // namespace
}  // namespace saturate
