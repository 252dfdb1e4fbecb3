// The link to the store of a measured run.
#pragma once

#include <cstdint>
#include <optional>

#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"
#include "store/link.h"

namespace saturate {

// Sums over several measurements, each between begin() and end().
class MeasuredLink {
 public:
  // All must outlive this.
  MeasuredLink(Env& env, const Recipe& recipe, const Dataset& source);
  void begin();
  void end();
  // With what advice needs; empty if the source is not in a store. `step`: the mean of the run.
  // Reads some samples.
  std::optional<LinkUse> result(const PhaseTimes& step) const;

 private:
  Env& env_;
  const Recipe& recipe_;
  const Dataset& source_;
  std::optional<StoreCounts> before_;
  int64_t begin_ns_ = 0;
  StoreCounts use_;
  double seconds_ = 0;
};

}  // namespace saturate
