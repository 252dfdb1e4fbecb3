#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "data/read_ahead.h"
#include "saturate/data/loader.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

// Fisher and Yates, as in Knuth, TAOCP vol. 2, algorithm 3.4.2P.
void shuffle_all(std::span<uint32_t> values, RandomStream& random) {
  for (size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[size_t(random.below(left))]);
}

std::vector<uint32_t> draw_blocks(size_t size, size_t block, RandomStream& random) {
  std::vector<uint32_t> blocks((size + block - 1) / block);
  std::iota(blocks.begin(), blocks.end(), uint32_t{0});
  shuffle_all(blocks, random);
  return blocks;
}

std::vector<uint32_t> block_order(size_t size, size_t block, RandomStream& random) {
  const std::vector<uint32_t> blocks = draw_blocks(size, block, random);
  std::vector<uint32_t> order;
  order.reserve(size);
  size_t window = 0;  // begin of the window
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t first = blocks[i] * block, last = std::min(first + block, size);
    for (size_t sample = first; sample < last; ++sample) order.push_back(uint32_t(sample));
    if ((i + 1) % kShuffleWindow != 0 && i + 1 != blocks.size()) continue;
    shuffle_all(std::span(order).subspan(window), random);
    window = order.size();
  }
  return order;
}

}  // namespace

std::vector<uint32_t> epoch_blocks(size_t size, uint64_t seed, uint32_t epoch, size_t block) {
  RandomStream random(seed, epoch, 0, RandomUse::kShuffle);
  return draw_blocks(size, block, random);
}

std::vector<uint32_t> epoch_order(size_t size, uint64_t seed, uint32_t epoch,
                                  const ShuffleOptions& shuffle) {
  RandomStream random(seed, epoch, 0, RandomUse::kShuffle);
  if (shuffle.mode == ShuffleMode::kBlock) return block_order(size, size_t(shuffle.block), random);
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), uint32_t{0});
  if (shuffle.mode == ShuffleMode::kFull) shuffle_all(order, random);
  return order;
}

std::vector<uint32_t> length_order(std::vector<uint32_t> order, size_t batch, uint64_t seed,
                                   uint32_t epoch, const std::vector<uint32_t>& lengths) {
  constexpr size_t kWindowBatches = 50;
  const size_t batches = order.size() / batch;  // without an incomplete one
  const size_t window = std::clamp<size_t>(batches / 4, 1, kWindowBatches);
  std::vector<uint32_t> grouped;
  grouped.reserve(order.size());
  for (size_t first = 0; first < batches; first += window) {
    const size_t count = std::min(window, batches - first);
    const auto begin = order.begin() + ptrdiff_t(first * batch);
    std::stable_sort(begin, begin + ptrdiff_t(count * batch),
                     [&](uint32_t a, uint32_t b) { return lengths[a] < lengths[b]; });
    RandomStream random(seed, epoch, 1 + first, RandomUse::kShuffle);
    std::vector<uint32_t> places(count);
    std::iota(places.begin(), places.end(), uint32_t{0});
    shuffle_all(places, random);
    for (const uint32_t place : places)
      grouped.insert(grouped.end(), begin + ptrdiff_t(place * batch),
                     begin + ptrdiff_t((place + 1) * batch));
  }
  grouped.insert(grouped.end(), order.begin() + ptrdiff_t(batches * batch), order.end());
  return grouped;
}

size_t epoch_samples(size_t size, const Shard& shard) {
  const size_t world = size_t(shard.world);
  if (shard.uneven == Uneven::kPad) return (size + world - 1) / world * world;
  return shard.uneven == Uneven::kDrop ? size / world * world : size;
}

std::vector<uint32_t> rank_order(const std::vector<uint32_t>& order, size_t batch,
                                 const Shard& shard, size_t samples) {
  std::vector<uint32_t> own;
  own.reserve(samples / size_t(shard.world) + 1);
  for (size_t begin = 0; begin < samples; begin += batch) {
    const size_t end = std::min(begin + batch, samples);
    for (size_t place = begin + size_t(shard.rank); place < end; place += size_t(shard.world))
      own.push_back(order[place % order.size()]);
  }
  return own;
}

}  // namespace saturate
