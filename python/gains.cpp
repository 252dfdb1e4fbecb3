#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "advise/gain.h"
#include "parts.h"

namespace saturate {
namespace {

using GainTuple = std::tuple<double, double, double>;

GainTuple measured(const std::vector<double>& before, const std::vector<double>& after) {
  const Gain gain = paired_gain(before, after);
  return {gain.ratio, gain.low, gain.high};
}

// Whether a gain reaches the least one that counts.
template <class Test>
auto tested(Test test) {
  return [test](const GainTuple& gain, bool alters_training) {
    const auto& [ratio, low, high] = gain;
    return test({ratio, low, high}, alters_training ? kWorthGainTraining : kWorthGain);
  };
}

}  // namespace

void register_gains(nanobind::module_& module) {
  namespace nb = nanobind;
  module.def("paired_gain", &measured, nb::arg("before"), nb::arg("after"));
  module.def("is_worth", tested(&is_worth), nb::arg("gain"), nb::arg("alters_training"));
  module.def("may_be_worth", tested(&may_be_worth), nb::arg("gain"), nb::arg("alters_training"));
}

}  // namespace saturate
