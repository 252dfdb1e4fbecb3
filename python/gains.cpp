#include "gains.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "advise/gain.h"

namespace saturate {
namespace {

using GainTuple = std::tuple<double, double, double>;

GainTuple measured(const std::vector<double>& before, const std::vector<double>& after) {
  const Gain gain = paired_gain(before, after);
  return {gain.ratio, gain.low, gain.high};
}

Gain from_tuple(const GainTuple& gain) {
  return {std::get<0>(gain), std::get<1>(gain), std::get<2>(gain)};
}

double least_gain(bool alters_training) {
  return alters_training ? kWorthGainTraining : kWorthGain;
}

}  // namespace

void register_gains(nanobind::module_& module) {
  namespace nb = nanobind;
  module.def("paired_gain", &measured, nb::arg("before"), nb::arg("after"));
  module.def(
      "is_worth",
      [](const GainTuple& gain, bool alters_training) {
        return is_worth(from_tuple(gain), least_gain(alters_training));
      },
      nb::arg("gain"), nb::arg("alters_training"));
  module.def(
      "may_be_worth",
      [](const GainTuple& gain, bool alters_training) {
        return may_be_worth(from_tuple(gain), least_gain(alters_training));
      },
      nb::arg("gain"), nb::arg("alters_training"));
}

}  // namespace saturate
