#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "advise/gain.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

TEST(PairedGain, IsTheGeometricMeanWithStudentsInterval) {
  // By hand: mean of the four logs, t(3) = 3.1824, standard error of the mean.
  const std::vector<double> before = {100, 110, 95, 102}, after = {150, 160, 147, 149};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.ratio, 1.490217, 1e-6);
  EXPECT_NEAR(gain.low, 1.424049, 1e-4);
  EXPECT_NEAR(gain.high, 1.559460, 1e-4);
}

TEST(PairedGain, ASlowdownOfWholeRoundsCancelsOut) {
  const std::vector<double> before = {100, 50, 10}, after = {110, 55, 11};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.low, 1.1, 1e-9);
  EXPECT_NEAR(gain.high, 1.1, 1e-9);
}

// Nine patients' depression scores before and after a tranquilizer. M. Hollander and D. A. Wolfe,
// "Nonparametric Statistical Methods" (1973), section 3, report the estimate -0.46 and the 96.1 %
// interval (-0.786, -0.010).
TEST(PairedGain, IsHodgesAndLehmannsFromSixRoundsOn) {
  const std::vector<double> x = {1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30},
                            y = {0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29};
  std::vector<double> before, after;
  for (size_t i = 0; i < x.size(); ++i) {
    before.push_back(std::exp(x[i]));
    after.push_back(std::exp(y[i]));
  }
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(std::log(gain.ratio), -0.46, 1e-9);
  EXPECT_NEAR(std::log(gain.low), -0.786, 1e-9);
  EXPECT_NEAR(std::log(gain.high), -0.010, 1e-9);
}

// With six values the interval is their whole range: P(no rank is negative) is 1/64.
TEST(PairedGain, TheIntervalOfSixRoundsIsTheirRange) {
  const std::vector<double> before(6, 1), after = {1.3, 1.1, 1.4, 1.2, 1.25, 1.35};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.low, 1.1, 1e-9);
  EXPECT_NEAR(gain.high, 1.4, 1e-9);
}

TEST(PairedGain, OneDisturbedRoundInTwelveHardlyChangesIt) {
  const std::vector<double> before(12, 1);
  std::vector<double> after(12, 1.5);
  for (size_t i = 0; i < after.size(); ++i) after[i] += (i % 2 == 0 ? 0.001 : -0.001) * double(i);
  after[4] = 0.2;
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.ratio, 1.5, 0.01);
  EXPECT_GT(gain.low, 1.48);
  EXPECT_LT(gain.high, 1.52);
}

TEST(PairedGain, OneRoundHasNoInterval) {
  const std::vector<double> before = {100}, after = {300};
  const Gain gain = paired_gain(before, after);
  EXPECT_NEAR(gain.ratio, 3, 1e-9);
  EXPECT_LT(gain.low, 1);
}

TEST(PairedGain, UnpairedRoundsAreRefused) {
  const std::vector<double> two = {1, 2}, none;
  EXPECT_THROW(paired_gain(two, none), Error);
  EXPECT_THROW(paired_gain(none, none), Error);
}

}  // namespace
}  // namespace saturate
