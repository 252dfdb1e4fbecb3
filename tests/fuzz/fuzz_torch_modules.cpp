#include "tests/fuzz/fuzz_torch_modules.h"

#include <sstream>
#include <stdexcept>
#include <string>

#include "advise/ladder.h"
#include "record/metrics.h"

namespace saturate::testing {
namespace {

void require(bool sound, const char* what) {
  if (!sound) throw std::logic_error(what);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

size_t fuzz_ladder(std::span<const std::byte> bytes) {
  try {
    const Ladder ladder = parse_ladder(text_of(bytes), "input", "folder");
    require(!ladder.title.empty() && !ladder.rungs.empty(), "a ladder without rungs");
    for (size_t i = 0; i < ladder.rungs.size(); ++i) {
      require(ladder.rungs[i].previous <= i, "builds on a rung below");
      unmet_needs(ladder.rungs[i], MachineFacts{});
    }
    return 1;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw std::logic_error(error.what());
    return 0;
  }
}

size_t fuzz_metrics(std::span<const std::byte> bytes) {
  std::istringstream lines(text_of(bytes));
  size_t records = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = from_json_line(line);
    if (!record) continue;
    // Only once: an infinite sum of phases is written as null, and read as absent.
    const auto again = from_json_line(to_json_line(*record));
    require(again.has_value(), "the written line is not a record");
    const std::string text = to_json_line(*again);
    require(to_json_line(*from_json_line(text)) == text, "it changes when written and read");
    ++records;
  }
  return records;
}

}  // namespace saturate::testing
