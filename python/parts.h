// SPDX-License-Identifier: BSD-3-Clause
// The parts of the module _core besides its loader: see _core.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace saturate {

// saturate.Error, with the message that the command would print, also for a missing file.
void register_error(nanobind::module_& module);

// Gains of paired measurements, as the command computes them, for saturate.diagnose.
void register_gains(nanobind::module_& module);

// The command's `report`, for saturate.report().
void register_report(nanobind::module_& module);

// The parts of saturate.watch() that run in every step. A Python function costs 3 to 15 us there,
// since a training step evicts the interpreter from the caches.
void register_phase_clock(nanobind::module_& module);
void register_step_counter(nanobind::module_& module);

}  // namespace saturate
