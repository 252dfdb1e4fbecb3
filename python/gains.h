// SPDX-License-Identifier: BSD-3-Clause
// The statistics of diagnose for Python: see advise/gain.h.
#pragma once

#include <nanobind/nanobind.h>

namespace saturate {

// Adds paired_gain(), is_worth() and may_be_worth(); a gain is a tuple (ratio, low, high).
void register_gains(nanobind::module_& module);

}  // namespace saturate
