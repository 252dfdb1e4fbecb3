#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "base/printable.h"
#include "others_run.h"
#include "parts.h"
#include "python_values.h"
#include "report/report.h"
#include "saturate/data/env.h"

namespace saturate {
namespace {

std::string path_of(const nb::bytes& name) {
  return {name.c_str(), name.size()};
}

nb::tuple report(const std::vector<nb::bytes>& inputs, const nb::bytes& out, bool writes) {
  std::vector<std::string> paths;
  paths.reserve(inputs.size());
  for (const nb::bytes& input : inputs) paths.push_back(path_of(input));
  std::string page = path_of(out);
  {
    const OthersRun others_run;
    page = (writes ? write_report : report_path)(Env::posix(), paths, page);
  }
  return nb::make_tuple(name_of(page), text_of(printable(page)));
}

}  // namespace

void register_report(nb::module_& module) {
  module.def("report", &report, nb::arg("inputs"), nb::arg("out"), nb::arg("writes"));
}

}  // namespace saturate
