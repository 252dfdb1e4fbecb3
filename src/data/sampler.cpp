#include <numeric>
#include <utility>

#include "saturate/loader.h"
#include "saturate/random.h"

namespace saturate {

std::vector<uint32_t> epoch_order(size_t size, uint64_t seed, uint32_t epoch, bool shuffle) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), uint32_t{0});
  if (!shuffle) return order;
  // Fisher and Yates, as in Knuth, TAOCP vol. 2, algorithm 3.4.2P.
  RandomStream random(seed, epoch, 0, RandomUse::kShuffle);
  for (size_t left = size; left > 1; --left)
    std::swap(order[left - 1], order[size_t(random.below(left))]);
  return order;
}

}  // namespace saturate
