#include "trace/trace_window.h"

#include <algorithm>

#include "base/text.h"
#include "recipe/option_row.h"

namespace saturate {

int64_t positive_number(std::string_view text) {
  return std::max<int64_t>(0, parsed_number<int64_t>(text).value_or(0));
}

TraceWindow parse_trace(const std::string& text, const std::string& where) {
  if (text.empty()) return {};
  const auto refuse = [&](const std::string& problem) {
    fail_option("watch.trace", problem, "Write it as steps:100-110", where);
  };
  const auto colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  if (colon == std::string::npos || (kind != "steps" && kind != "nsight"))
    refuse("has no value \"" + text + "\"");
  const std::string_view range = std::string_view(text).substr(colon + 1);
  const auto dash = range.find('-');
  TraceWindow window;
  window.kind = kind == "steps" ? TraceKind::kSteps : TraceKind::kNsight;
  window.first = positive_number(range.substr(0, dash));
  window.last =
      dash == std::string_view::npos ? window.first : positive_number(range.substr(dash + 1));
  if (window.first == 0 || window.last < window.first)
    refuse("has no range of steps in \"" + text + "\"");
  if (window.last - window.first >= kMostTracedSteps)
    refuse(fmt::format("has {} steps, and {} is the most", window.last - window.first + 1,
                       kMostTracedSteps));
  return window;
}

}  // namespace saturate
