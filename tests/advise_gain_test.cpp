#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "saturate/error.h"
#include "saturate/gain.h"

namespace saturate {
namespace {

TEST(PairedGain, IsTheGeometricMeanWithStudentsInterval) {
  // Worked by hand: mean of the four logs, t(3) = 3.1824, standard error of the mean.
  const std::vector<double> before = {100, 110, 95, 102}, after = {150, 160, 147, 149};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.ratio, 1.490217, 1e-6);
  EXPECT_NEAR(gain.low, 1.424049, 1e-4);
  EXPECT_NEAR(gain.high, 1.559460, 1e-4);
  EXPECT_TRUE(gain.is_significant());
}

TEST(PairedGain, WhatSlowsWholeRoundsDownCancelsOut) {
  const std::vector<double> before = {100, 50, 10}, after = {110, 55, 11};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.low, 1.1, 1e-9);
  EXPECT_NEAR(gain.high, 1.1, 1e-9);
}

TEST(PairedGain, OneRoundProvesNothing) {
  const std::vector<double> before = {100}, after = {300};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.ratio, 3, 1e-9);
  EXPECT_FALSE(gain.is_significant());
}

TEST(PairedGain, RoundsWithoutAPartnerAreRefused) {
  const std::vector<double> two = {1, 2}, none;
  EXPECT_THROW(paired_gain(two, none), Error);
  EXPECT_THROW(paired_gain(none, none), Error);
}

}  // namespace
}  // namespace saturate
