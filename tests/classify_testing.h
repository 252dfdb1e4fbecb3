// Invented measurements of a run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "advise/diagnose.h"

namespace saturate::testing {

inline Gain gain(double ratio, double spread = 0.02) {
  return {ratio, ratio - spread, ratio + spread};
}

inline WhatIf what_if(Cause cause, double ratio, const std::string& setting = "a.b=1") {
  WhatIf made;
  made.cause = cause;
  made.settings = {setting};
  made.gain = gain(ratio);
  return made;
}

// Input gives 200 images/s, compute alone 1000; one of four cores is in use.
inline Measurements input_bound(std::vector<WhatIf> what_ifs) {
  Measurements found;
  found.rate = 198;
  found.compute_rate = 1000;
  found.input_rate = 200;
  found.without_input = gain(5);
  found.input_alone = gain(1.01);
  found.phases.seconds[size_t(Phase::kWait)] = 0.8;
  found.phases.seconds[size_t(Phase::kForward)] = 0.2;
  found.cores_used = 1.2;
  found.cores = 4;
  found.batch = 32;
  found.what_ifs = std::move(what_ifs);
  return found;
}

// Compute is the bottleneck.
inline Measurements computing(std::vector<WhatIf> what_ifs) {
  Measurements found = input_bound(std::move(what_ifs));
  found.rate = 970;
  found.input_rate = 5000;
  found.without_input = gain(1.03);
  found.input_alone = gain(5);
  found.phases = {};
  found.phases.seconds[size_t(Phase::kForward)] = 1;
  found.cores_used = 3.9;
  return found;
}

}  // namespace saturate::testing
