#include "saturate/gain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "saturate/error.h"

namespace saturate {
namespace {

// The 97.5th percentile of Student's t by degrees of freedom, from 1.
constexpr std::array<double, 30> kStudent = {
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

double student(size_t degrees) {
  // Beyond the table, within 0.2 %: the first terms of t's expansion around the normal's 1.96.
  return degrees <= kStudent.size() ? kStudent[degrees - 1] : 1.96 + 2.37 / double(degrees);
}

}  // namespace

Gain paired_gain(std::span<const double> before, std::span<const double> after) {
  if (before.empty() || before.size() != after.size())
    fail(ErrorKind::kUsage, "a gain needs as many rounds of each", "paired_gain",
         "Measure both in every round");
  const auto n = double(before.size());
  double mean = 0;
  for (size_t i = 0; i < before.size(); ++i) mean += std::log(after[i] / before[i]) / n;
  if (before.size() == 1) return {std::exp(mean), 0, std::numeric_limits<double>::infinity()};
  double squares = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double off = std::log(after[i] / before[i]) - mean;
    squares += off * off;
  }
  const double half = student(before.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return {std::exp(mean), std::exp(mean - half), std::exp(mean + half)};
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace saturate
