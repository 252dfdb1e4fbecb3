// Text of a Markov chain of order 2, whose entropy is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "saturate/data/random.h"

namespace saturate {

// Symbols are numbers in [0, symbols). Symbol c follows a and b, in that order, with a probability
// proportional to exp(u[a][c] + v[b][c]); u and v are normal with deviation 1.5, drawn from the
// seed. Immutable; all entropies are in nats.
class MarkovText {
 public:
  MarkovText(int symbols, uint64_t seed);

  // The first symbols of the stationary chain.
  void draw(RandomStream& random, std::vector<uint16_t>& out) const;

  // P(c | a, b) as [symbols * symbols][symbols], row a * symbols + b.
  double probability(int a, int b, int c) const;

  // The entropy of a symbol whose two predecessors are known.
  double entropy_rate() const { return rate_; }
  // The least mean loss of predicting `count` >= 1 symbols after the first of a text.
  double least_loss(size_t count) const;

 private:
  void find_stationary();
  void find_entropies();

  size_t symbols_;
  std::vector<double> below_;  // [symbols * symbols][symbols]: P(at most c | a, b)
  // P(a, b) of two neighbours, in a chain that has run for ever: [symbols * symbols].
  std::vector<double> stationary_;
  std::vector<double> pairs_below_;
  double rate_ = 0, after_one_ = 0;  // the latter if only one predecessor is known
};

}  // namespace saturate
