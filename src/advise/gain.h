// The speedup of one variant over another, from interleaved measurements.
#pragma once

#include <span>
#include <vector>

namespace saturate {

// A ratio of rates and its 95 % confidence interval: 1.5 is 50 % faster.
struct Gain {
  double ratio, low, high;
};

// A ratio without an interval.
inline Gain exactly(double ratio) {
  return {ratio, ratio, ratio};
}

// For rates (such as images/s; all above 0) measured in rounds, before[i] next to after[i]: what
// slows a whole round down cancels out. With six or more rounds: exp of the median of all pairwise
// means of log(after/before), including each round with itself, with the interval of the
// signed-rank test (J. L. Hodges, E. L. Lehmann, "Estimates of location based on rank tests",
// Annals of Mathematical Statistics 34, 1963), which is robust against a few disturbed rounds.
// Below six, too few for that, exp of the mean, with the interval of Student's t (W. S. Gosset,
// "The probable error of a mean", Biometrika 6, 1908). One round gives no spread: the interval is
// then 0 to infinity. Throws kUsage if the numbers of rounds differ or are 0.
Gain paired_gain(std::span<const double> before, std::span<const double> after);

// The images/s of two interleaved runs, one value per round.
struct Rounds {
  std::vector<double> before, after;
  Gain gain() const { return paired_gain(before, after); }
};

// Minimum speedup for a change to be worth doing, which must also be significant. A change that
// alters training, or leaves less information, needs the larger one.
inline constexpr double kWorthGain = 1.05, kWorthGainTraining = 1.10;

// A speedup whose interval reaches from at most 1 to this is neither shown nor ruled out.
inline constexpr double kOpenGain = 1.25;

// Whether a speedup of at least `least` is shown: worth the change.
bool is_worth(const Gain& gain, double least);
// Whether it was measured too imprecisely to tell.
bool may_be_worth(const Gain& gain, double least);

// The middle value, or the mean of the two middle ones. REQUIRES: not empty.
double median_of(std::vector<double> values);

}  // namespace saturate
