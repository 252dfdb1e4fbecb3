// The option table's rows for [watch]. Adding a key: a member in saturate/data/recipe.h, a row
// here, and
//   build/saturate list options --markdown > docs/recipe.md
#include "recipe/option_row.h"
#include "trace/trace_window.h"

namespace saturate {
namespace {

// Validated when set, not when used.
OptionRow trace_row() {
  OptionRow row =
      text(SATURATE_OPTION(watch.trace),
           "Steps to trace: steps:100-110 writes trace.json for Perfetto and Chrome (operators, "
           "phases, loader threads), and trace.txt, a table of operators; nsight:100-110 starts "
           "and stops the Nsight profiler under which a GPU's run was started. Empty: none.");
  row.set = [set = row.set](Recipe& recipe, const OptionValue& value, const std::string& where) {
    set(recipe, value, where);
    parse_trace(recipe.watch.trace, where);
  };
  return row;
}

}  // namespace

std::vector<OptionRow> watch_rows() {
  return {
      integer(SATURATE_OPTION(watch.every), {1, 1 << 20}, "steps",
              "Steps between two \"step\" lines of metrics.jsonl."),
      flag(SATURATE_OPTION(watch.progress), "Shows progress while running."),
      flag(SATURATE_OPTION(watch.tensorboard),
           "Writes loss, accuracy, speed, memory, time shares and the recipe for TensorBoard, in "
           "tb/ of the run's folder."),
      flag(SATURATE_OPTION(watch.csv), "Writes metrics.csv beside metrics.jsonl."),
      integer(SATURATE_OPTION(watch.prometheus_port), {0, 65535}, "port",
              "Serves Prometheus metrics at http://ADDRESS:PORT/metrics, and health probes at "
              "/healthz, during the run; 0: off."),
      text(SATURATE_OPTION(watch.prometheus_address),
           "Address of this machine to listen on; 0.0.0.0 for all of them. The default serves this "
           "machine only; on any other, everyone who can connect can read the run's metrics."),
      text(SATURATE_OPTION(watch.prometheus_hosts),
           "Allowed values of the request's Host header besides localhost and that address, "
           "separated by commas; *: any. Other requests are refused, such as those of other sites' "
           "pages in a browser."),
      number(SATURATE_OPTION(watch.telemetry_hz), {0, 100}, "readings/s",
             "How often cores, memory, disk, network, the loader's queue and the GPU are sampled, "
             "on a separate thread; 0: never."),
      integer(SATURATE_OPTION(watch.samples), {0, 256}, "images",
              "Saves this many images of the first training batch, as augmented, and of the last "
              "evaluation's worst mistakes, in samples/ of the run's folder; 0: none."),
      integer(
          SATURATE_OPTION(watch.histograms), {0, 1 << 30}, "steps",
          "Steps between histograms of every parameter and its gradient for TensorBoard; 0: none."),
      trace_row(),
  };
}

}  // namespace saturate
