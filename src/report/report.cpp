#include "report/report.h"

#include "report/page_text.h"
#include "report/report_assets.h"
#include "report/report_data.h"

namespace saturate {

std::string make_report(std::span<const RunReading> runs, std::span<const LadderReading> ladders) {
  const std::string data = script_json(report_data(runs, ladders));
  return fill_page(page_html(), {{"css", page_css()},
                                 {"version", SATURATE_VERSION},
                                 {"data", data},
                                 {"chart_js", chart_js()},
                                 {"script", page_js()}});
}

}  // namespace saturate
