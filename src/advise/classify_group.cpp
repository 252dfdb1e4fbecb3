// Which of several processes wait for which. All make the same steps; a process's own work is all
// that it does not spend in Phase::kReduce.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "advise/what_ifs.h"

namespace saturate {
namespace {

double own_s(const PhaseTimes& rank) {
  return rank.total() - rank[Phase::kReduce];
}

struct Straggler {
  size_t rank, next;  // the one with the most own work, and the one after it
  double excess_s;    // of a step
};

Straggler find_straggler(const std::vector<PhaseTimes>& ranks) {
  std::vector<size_t> by_work(ranks.size());
  std::iota(by_work.begin(), by_work.end(), 0);
  std::sort(by_work.begin(), by_work.end(),
            [&](size_t a, size_t b) { return own_s(ranks[a]) > own_s(ranks[b]); });
  return {by_work[0], by_work[1], own_s(ranks[by_work[0]]) - own_s(ranks[by_work[1]])};
}

// The phase in which a process loses the most time to another.
Phase largest_excess(const PhaseTimes& rank, const PhaseTimes& other) {
  Phase largest = Phase::kWait;
  double most = 0;
  for (int i = 0; i < kPhaseCount; ++i) {
    const auto phase = Phase(i);
    if (phase == Phase::kReduce || rank[phase] - other[phase] <= most) continue;
    most = rank[phase] - other[phase];
    largest = phase;
  }
  return largest;
}

// A step takes as long as the slowest rank's. Takes from each round's the time that this rank works
// longer than the next in that round; a difference that is noise changes its sign between rounds.
Gain without_excess(const std::vector<std::vector<PhaseTimes>>& rounds, size_t slowest) {
  std::vector<double> now, without;
  for (size_t round = 0; round < rounds[slowest].size(); ++round) {
    double next = 0;
    for (size_t rank = 0; rank < rounds.size(); ++rank)
      if (rank != slowest) next = std::max(next, own_s(rounds[rank][round]));
    const double step_s = rounds[slowest][round].total();
    now.push_back(1 / step_s);
    without.push_back(1 / (step_s - (own_s(rounds[slowest][round]) - next)));
  }
  return paired_gain(now, without);
}

}  // namespace

double group_efficiency(const std::vector<PhaseTimes>& ranks) {
  double sum = 0;
  for (const PhaseTimes& rank : ranks) sum += own_s(rank) / rank.total();
  return sum / double(ranks.size());
}

std::vector<WhatIf> group_what_ifs(const Measurements& found) {
  const Straggler straggler = find_straggler(found.ranks);
  return {{.cause = Cause::kStraggler,
           .note = fmt::format("if rank {} were as fast as rank {}, the next slowest",
                               straggler.rank, straggler.next),
           .gain = without_excess(found.rank_rounds, straggler.rank),
           .measured = false},
          {.cause = Cause::kCommunication,
           .note = "without all-reduces: the upper limit for distributed.compress, "
                   "distributed.bucket_mb and train.accumulate",
           .gain = found.without_sums}};
}

std::string straggler_text(const std::vector<PhaseTimes>& ranks) {
  const Straggler straggler = find_straggler(ranks);
  const PhaseTimes& slowest = ranks[straggler.rank];
  return fmt::format(
      "rank {} works {:.1f} ms a step, {:.1f} ms more than the next, most of it in {}",
      straggler.rank, 1e3 * own_s(slowest), 1e3 * straggler.excess_s,
      phase_name(largest_excess(slowest, ranks[straggler.next])));
}

}  // namespace saturate
