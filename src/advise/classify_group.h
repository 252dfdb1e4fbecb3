// Compares the step times of several processes.
#pragma once

#include <string>
#include <vector>

#include "advise/diagnose.h"

namespace saturate {

// Each process's share of a step that waits for no other, over the processes, in the mean: 1 where
// none waits.
double group_efficiency(const std::vector<PhaseTimes>& ranks);

// The measured gain of steps without all-reduce; and what it would be if the process
// whose own work outlasts all the others' had no more than the next, inferred round by round.
// REQUIRES: two ranks at least.
std::vector<WhatIf> group_what_ifs(const Measurements& found);

// "rank 1 works 12.1 ms a step, 7.0 ms more than the next, most of it in wait"
std::string straggler_text(const std::vector<PhaseTimes>& ranks);

}  // namespace saturate
