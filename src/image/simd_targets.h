// The variants of kernels that Highway compiles, one for each set of instructions.
#pragma once

#include <hwy/targets.h>

#include <vector>

namespace saturate {

// `plain`, and those of each set that this machine has; `best()`: of the best set that is enabled.
// `kernel`: a member that tells them apart, as a set for which none are compiled gives `plain`.
// For tests: changes the enabled sets, of all threads, and enables all again.
template <class Kernels, class Best, class Kernel>
std::vector<Kernels> all_targets(const Kernels& plain, const Best& best, Kernel Kernels::*kernel) {
  std::vector<Kernels> all{plain};
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    const Kernels found = best();
    if (found.*kernel != plain.*kernel) all.push_back(found);
  }
  hwy::SetSupportedTargetsForTest(0);
  return all;
}

}  // namespace saturate
