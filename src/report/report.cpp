#include "report/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace saturate {

std::string script_json(const nlohmann::ordered_json& json) {
  std::string safe;
  // In ASCII, so that U+2028 and similar are written as \u2028.
  for (const char c : json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&')
      safe += fmt::format("\\u{:04x}", int(c));
    else
      safe += c;
  }
  return safe;
}

std::string fill_page(std::string_view page,
                      const std::vector<std::pair<std::string_view, std::string_view>>& parts) {
  std::string filled;
  for (size_t at = 0;;) {
    const size_t open = page.find("{{", at), close = page.find("}}", open);
    if (close == std::string_view::npos) return filled.append(page.substr(at));
    filled.append(page.substr(at, open - at));
    for (const auto& [name, text] : parts)
      if (name == page.substr(open + 2, close - open - 2)) filled.append(text);
    at = close + 2;
  }
}

std::string make_report(std::span<const RunReading> runs, std::span<const LadderReading> ladders) {
  const std::string data = script_json(report_data(runs, ladders));
  return fill_page(page_html(), {{"css", page_css()},
                                 {"version", SATURATE_VERSION},
                                 {"data", data},
                                 {"chart_js", chart_js()},
                                 {"script", page_js()}});
}

}  // namespace saturate
