#include "advise/gain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr double kTail = 0.025;  // outside a 95 % interval, on each side

// The 97.5th percentile of Student's t by degrees of freedom, from 1.
constexpr std::array<double, 4> kStudent = {12.706, 4.303, 3.182, 2.776};

Gain students_gain(const std::vector<double>& logs) {
  const auto n = double(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / n;
  if (logs.size() == 1) return {std::exp(mean), 0, std::numeric_limits<double>::infinity()};
  double squares = 0;
  for (double log : logs) squares += (log - mean) * (log - mean);
  const double half = kStudent[logs.size() - 2] * std::sqrt(squares / (n - 1) / n);
  return {std::exp(mean), std::exp(mean - half), std::exp(mean + half)};
}

// How many of the least (and of the greatest) Walsh averages of n values lie outside the interval:
// the greatest number k with P(W < k) <= kTail, where W, the signed-rank statistic, is the sum of a
// random subset of 1 ... n.
size_t walsh_averages_outside(size_t n) {
  std::vector<double> probability(n * (n + 1) / 2 + 1);
  probability[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank)
    for (size_t sum = probability.size(); sum-- > 0;)
      probability[sum] = (probability[sum] + (sum < rank ? 0 : probability[sum - rank])) / 2;
  size_t outside = 0;
  for (double below = probability[0]; below <= kTail; below += probability[outside]) ++outside;
  return outside;
}

Gain signed_rank_gain(const std::vector<double>& logs) {
  std::vector<double> walsh;
  for (size_t i = 0; i < logs.size(); ++i)
    for (size_t j = i; j < logs.size(); ++j) walsh.push_back((logs[i] + logs[j]) / 2);
  std::sort(walsh.begin(), walsh.end());
  const size_t outside = walsh_averages_outside(logs.size());
  return {std::exp(median_of(walsh)), std::exp(walsh[outside - 1]),
          std::exp(walsh[walsh.size() - outside])};
}

}  // namespace

Gain paired_gain(std::span<const double> before, std::span<const double> after) {
  if (before.empty() || before.size() != after.size())
    fail(ErrorKind::kUsage, "a gain needs as many rounds of each", "paired_gain",
         "Measure both in every round");
  std::vector<double> logs;
  for (size_t i = 0; i < before.size(); ++i) logs.push_back(std::log(after[i] / before[i]));
  return logs.size() <= kStudent.size() + 1 ? students_gain(logs) : signed_rank_gain(logs);
}

bool is_worth(const Gain& gain, double least) {
  return gain.ratio >= least && gain.low > 1;
}

bool may_be_worth(const Gain& gain, double least) {
  return !is_worth(gain, least) && gain.low <= 1 && gain.high >= kOpenGain;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace saturate
