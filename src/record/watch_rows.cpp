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

// "9400", "0.0.0.0:9400", "[::1]:9400"; an integer in a recipe is a port too.
OptionRow prometheus_row() {
  const char* key = "watch.prometheus";
  OptionRow row = text(
      SATURATE_OPTION_AS(key, watch.prometheus_address),
      "Serves Prometheus metrics at http://ADDRESS:PORT/metrics, and health probes at /healthz, "
      "during the run. ADDRESS is an address of this machine, or 0.0.0.0 for all of them; without "
      "it the endpoint listens at 127.0.0.1, for this machine only. At any other address everyone "
      "who can connect can read the run's metrics. Requests whose Host is neither localhost, "
      "ADDRESS nor a HOST are refused, which keeps out other sites' pages in a browser; HOST * "
      "allows any. Empty: off.");
  row.type = "PORT[,HOST...]|ADDRESS:PORT[,HOST...]";
  row.set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const int64_t* number = std::get_if<int64_t>(&value);
    const std::string* text = std::get_if<std::string>(&value);
    std::string given = number ? std::to_string(*number) : text ? *text : "none";
    recipe.watch.prometheus_port = 0;
    recipe.watch.prometheus_address = WatchOptions().prometheus_address;
    const auto comma = std::min(given.find(','), given.size());
    recipe.watch.prometheus_hosts = given.substr(std::min(comma + 1, given.size()));
    given.resize(comma);
    if ((given.empty() || given == "0") && recipe.watch.prometheus_hosts.empty()) return;
    const auto colon = given.rfind(':');
    const int64_t port = positive_number(given.substr(colon == std::string::npos ? 0 : colon + 1));
    if (port < 1 || port > 65535 || colon == 0)
      fail_option(key, "has no port of 1 to 65535 in \"" + given + "\"",
                  "Write it as 9400, or as 0.0.0.0:9400", where);
    recipe.watch.prometheus_port = int(port);
    if (colon == std::string::npos) return;
    std::string& address = recipe.watch.prometheus_address = given.substr(0, colon);
    if (address.starts_with('[') && address.ends_with(']'))  // of IPv6
      address = address.substr(1, address.size() - 2);
  };
  row.get = [](const Recipe& recipe) {
    const WatchOptions& watch = recipe.watch;
    if (watch.prometheus_port == 0) return OptionValue(std::string());
    const std::string port = std::to_string(watch.prometheus_port);
    const bool is_default = watch.prometheus_address.empty() ||
                            watch.prometheus_address == WatchOptions().prometheus_address;
    return OptionValue((is_default ? port : watch.prometheus_address + ":" + port) +
                       (watch.prometheus_hosts.empty() ? "" : "," + watch.prometheus_hosts));
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
      flag(SATURATE_OPTION(watch.csv), "Also writes metrics.csv, next to metrics.jsonl."),
      prometheus_row(),
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
