// What the times of several processes' steps say of each other.
#pragma once

#include <string>
#include <vector>

#include "saturate/diagnose.h"

namespace saturate {

// Each process's share of a step that waits for no other, over the processes, in the mean: 1 where
// none waits.
double group_efficiency(const std::vector<PhaseTimes>& ranks);

// Where one process's own work outlasts all the others', and what communication takes even of that
// which waits for nobody: what their absence gains, inferred. `ranks`: two at least.
std::vector<WhatIf> group_what_ifs(const std::vector<PhaseTimes>& ranks);

// "rank 1 works 12.1 ms a step, 7.0 ms more than the next, most of it in wait"
std::string straggler_text(const std::vector<PhaseTimes>& ranks);

}  // namespace saturate
