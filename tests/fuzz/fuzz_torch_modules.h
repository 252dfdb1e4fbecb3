// Feeds any bytes to the parsers of modules with torch: ladder files and a run's metrics. Their
// readers need no torch themselves.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// 1 for a ladder that is sound, 0 for one that is refused as it should be; throws or crashes where
// there is a bug. Each rung of a sound one builds on itself or one above.
size_t fuzz_ladder(std::span<const std::byte> bytes);
// Reads each line as a record of metrics.jsonl, which stays the same from its second writing on.
// How many lines are records.
size_t fuzz_metrics(std::span<const std::byte> bytes);

}  // namespace saturate::testing
