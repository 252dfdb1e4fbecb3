#include "phase_clock.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <string_view>

#include "parts.h"

namespace saturate {
namespace {

nb::tuple phase_names() {
  nb::list names;
  for (int phase = 0; phase < kPhaseCount; ++phase) {
    const std::string_view name = phase_name(Phase(phase));
    names.append(nb::str(name.data(), name.size()));
  }
  return nb::tuple(names);
}

}  // namespace

void register_phase_clock(nb::module_& module) {
  module.attr("PHASES") = phase_names();
  register_step_counter(module);
  nb::class_<PhaseClock>(module, "PhaseClock")
      .def(nb::init<nb::object>(), nb::arg("clock") = nb::none())
      .def("enter", &PhaseClock::enter)
      .def("leave", &PhaseClock::leave)
      .def("switch", &PhaseClock::switch_phase)
      .def("settle", &PhaseClock::settle)
      .def("set_detailed", &PhaseClock::set_detailed)
      .def("is_long", &PhaseClock::is_long)
      .def("take_unknown", &PhaseClock::take_unknown)
      .def_prop_ro("begin", &PhaseClock::begin)
      .def_prop_ro("now", &PhaseClock::now)
      .def_prop_ro("phase", &PhaseClock::phase)
      .def_prop_ro("is_detailed", &PhaseClock::is_detailed)
      .def_prop_ro("spent", &PhaseClock::spent)
      .def_rw("thread", &PhaseClock::thread, nb::arg().none())
      .def_rw("longest", &PhaseClock::longest)
      .def_rw("device", &PhaseClock::device, nb::arg().none())
      .def_rw("on_long", &PhaseClock::on_long, nb::arg().none());
}

}  // namespace saturate
