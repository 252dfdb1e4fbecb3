// Who of several processes waits for whom. All make the same steps, and what a process does not
// spend in Phase::kReduce is its own work.
#include "advise/classify_group.h"

#include <fmt/format.h>

#include <algorithm>

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
  for (size_t i = 0; i < ranks.size(); ++i) by_work[i] = i;
  std::sort(by_work.begin(), by_work.end(),
            [&](size_t a, size_t b) { return own_s(ranks[a]) > own_s(ranks[b]); });
  return {by_work[0], by_work[1], own_s(ranks[by_work[0]]) - own_s(ranks[by_work[1]])};
}

// The phase in which a process loses the most time to another.
Phase largest_excess(const PhaseTimes& rank, const PhaseTimes& other) {
  Phase largest = Phase::kWait;
  double most = 0;
  for (int i = 0; i < kPhaseCount; ++i) {
    const Phase phase = Phase(i);
    if (phase == Phase::kReduce || rank[phase] - other[phase] <= most) continue;
    most = rank[phase] - other[phase];
    largest = phase;
  }
  return largest;
}

WhatIf inferred(Cause cause, double step_s, double spared_s, std::string note) {
  WhatIf what_if;
  what_if.cause = cause;
  what_if.measured = false;
  what_if.note = std::move(note);
  const double ratio = step_s / (step_s - spared_s);
  what_if.gain = {ratio, ratio, ratio};
  return what_if;
}

}  // namespace

double group_efficiency(const std::vector<PhaseTimes>& ranks) {
  double sum = 0;
  for (const PhaseTimes& rank : ranks) sum += own_s(rank) / rank.total();
  return sum / double(ranks.size());
}

std::vector<WhatIf> group_what_ifs(const std::vector<PhaseTimes>& ranks) {
  const Straggler straggler = find_straggler(ranks);
  // The slowest waits for the network alone.
  const PhaseTimes& slowest = ranks[straggler.rank];
  std::vector<WhatIf> what_ifs = {
      inferred(Cause::kStraggler, slowest.total(), straggler.excess_s,
               fmt::format("if rank {} worked no longer than rank {}, the next", straggler.rank,
                           straggler.next)),
      inferred(Cause::kCommunication, slowest.total(), slowest[Phase::kReduce],
               "at most, if sums over the processes took no time: distributed.compress, "
               "distributed.bucket_mb and train.accumulate make them cheaper")};
  std::erase_if(what_ifs, [](const WhatIf& what_if) { return !is_worth(what_if); });
  return what_ifs;
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
