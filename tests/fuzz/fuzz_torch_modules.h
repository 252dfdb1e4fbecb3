// Any bytes as input of the parsers of modules with torch: ladder files and a run's metrics. The
// readers themselves need no torch.
#pragma once

#include <cstddef>
#include <span>

namespace saturate::testing {

// 1 for a valid ladder, 0 for one that is correctly refused; throws or crashes if there is a bug.
// Each rung of a valid one builds on itself or one above.
size_t fuzz_ladder(std::span<const std::byte> bytes);
// Reads each line as a record of metrics.jsonl, which does not change after it is written again.
// Returns the number of records.
size_t fuzz_metrics(std::span<const std::byte> bytes);

}  // namespace saturate::testing
