// How much of the CPU a thread may claim.
#pragma once

namespace saturate {

// From now on the calling thread runs in time that others leave, and in little more than a
// hundredth of a core where they leave none (nice 19). Where the system refuses, nothing changes.
void run_in_spare_time();

}  // namespace saturate
