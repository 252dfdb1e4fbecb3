#include "data/markov_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace saturate {
namespace {

constexpr double kDeviation = 1.5;
constexpr double kConverged = 1e-14;
constexpr int kMostRounds = 10'000;

// [rows][columns], of normal numbers.
std::vector<double> draw_table(uint64_t seed, uint64_t index, size_t count) {
  RandomStream random(seed, 0, index, RandomUse::kTextTable);
  std::vector<double> table(count);
  for (double& value : table) value = kDeviation * random.normal();
  return table;
}

double surprise(double probability) {
  return probability > 0 ? -probability * std::log(probability) : 0;
}

// The position of `uniform` in [0, 1) among ascending sums.
size_t place_of(double uniform, const double* begin, size_t count) {
  const auto place = size_t(std::upper_bound(begin, begin + count, uniform) - begin);
  return std::min(place, count - 1);  // the last sum may be rounded to less than 1
}

}  // namespace

MarkovText::MarkovText(int symbols, uint64_t seed) : symbols_(size_t(symbols)) {
  const size_t n = symbols_;
  const auto u = draw_table(seed, 0, n * n), v = draw_table(seed, 1, n * n);
  below_.resize(n * n * n);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b) {
      double* const row = &below_[(a * n + b) * n];
      double sum = 0;
      for (size_t c = 0; c < n; ++c) row[c] = sum += std::exp(u[a * n + c] + v[b * n + c]);
      for (size_t c = 0; c < n; ++c) row[c] /= sum;
    }
  find_stationary();
  find_entropies();
}

double MarkovText::probability(int a, int b, int c) const {
  const double* const row = &below_[(size_t(a) * symbols_ + size_t(b)) * symbols_];
  return c == 0 ? row[0] : row[c] - row[c - 1];
}

// By power iteration, which converges since every probability is positive.
void MarkovText::find_stationary() {
  const size_t n = symbols_;
  stationary_.assign(n * n, 1.0 / double(n * n));
  std::vector<double> next(n * n);
  double moved = 1;
  for (int round = 0; round < kMostRounds && moved > kConverged; ++round) {
    std::ranges::fill(next, 0);
    for (size_t a = 0; a < n; ++a)
      for (size_t b = 0; b < n; ++b) {
        const double* const row = &below_[(a * n + b) * n];
        for (size_t c = 0; c < n; ++c)
          next[b * n + c] += stationary_[a * n + b] * (row[c] - (c > 0 ? row[c - 1] : 0));
      }
    const double sum = std::accumulate(next.begin(), next.end(), 0.0);
    moved = 0;
    for (size_t i = 0; i < next.size(); ++i) {
      next[i] /= sum;
      moved += std::abs(next[i] - stationary_[i]);
    }
    stationary_.swap(next);
  }
  pairs_below_.resize(n * n);
  std::partial_sum(stationary_.begin(), stationary_.end(), pairs_below_.begin());
}

void MarkovText::find_entropies() {
  const size_t n = symbols_;
  for (size_t a = 0; a < n; ++a) {
    double alone = 0;  // P(a)
    for (size_t b = 0; b < n; ++b) {
      const double pair = stationary_[a * n + b];
      alone += pair;
      after_one_ += surprise(pair);
      for (size_t c = 0; c < n; ++c) rate_ += pair * surprise(probability(int(a), int(b), int(c)));
    }
    after_one_ -= surprise(alone);  // H(a, b) - H(a)
  }
}

double MarkovText::least_loss(size_t count) const {
  return (after_one_ + double(count - 1) * rate_) / double(count);
}

void MarkovText::draw(RandomStream& random, std::vector<uint16_t>& out) const {
  const size_t n = symbols_;
  size_t pair = place_of(random.next_double(), pairs_below_.data(), pairs_below_.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (i < 2) {
      out[i] = uint16_t(i == 0 ? pair / n : pair % n);
      continue;
    }
    const size_t next = place_of(random.next_double(), &below_[pair * n], n);
    out[i] = uint16_t(next);
    pair = pair % n * n + next;
  }
}

}  // namespace saturate
