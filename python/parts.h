// SPDX-License-Identifier: BSD-3-Clause
// The parts of the module _core besides its loader: see _core.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace saturate {

// Gains of paired measurements, as the command computes them, for saturate.diagnose.
void register_gains(nanobind::module_& module);

// The part of saturate.watch() that runs in every step. A Python function costs 3 to 15 us there,
// since a training step evicts the interpreter from the caches.
void register_phase_clock(nanobind::module_& module);

}  // namespace saturate
