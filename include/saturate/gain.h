// How much faster one way is than another, from measurements that took turns.
#pragma once

#include <span>
#include <vector>

namespace saturate {

// A ratio of rates and its 95 % confidence interval: 1.5 is half as fast again.
struct Gain {
  double ratio, low, high;
  // False where 1, no change at all, lies within the interval.
  bool is_significant() const { return low > 1 || high < 1; }
};

// Of rates (say, images/s; all above 0) measured in rounds, before[i] beside after[i]: what slows a
// whole round down cancels out. From six rounds up exp of the median of all means of two of
// log(after/before), a round beside itself included, with the interval of the signed-rank test (J.
// L. Hodges, E. L. Lehmann, "Estimates of location based on rank tests", Annals of Mathematical
// Statistics 34, 1963): a few rounds that something else disturbed move neither. Below six, which
// are too few for that, exp of the mean, its interval by Student's t (W. S. Gosset, "The probable
// error of a mean", Biometrika 6, 1908). One round says nothing about its spread: the interval is
// then 0 to infinity. Throws kUsage where the numbers of rounds differ or are 0.
Gain paired_gain(std::span<const double> before, std::span<const double> after);

// The middle value, or the mean of the two. REQUIRES: not empty.
double median_of(std::vector<double> values);

}  // namespace saturate
