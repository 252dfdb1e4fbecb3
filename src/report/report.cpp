#include "report/report.h"

#include <algorithm>

#include "report/page_text.h"
#include "report/report_assets.h"
#include "report/report_parts.h"

namespace saturate {
namespace {

// The MIT licence must accompany every copy of the software, so also each report.
constexpr const char* kFooter = R"(<details><summary>Licence of the charts</summary>
<p>This page carries Chart.js 3 (copyright 2014-2022 Chart.js Contributors) and within it
@kurkle/color (copyright 2018-2021 Jukka Kurkela), both under the MIT licence:</p>
<pre>Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense,
and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN
NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.</pre></details>
)";

std::string footer() {
  return std::string("<footer>\n<p>Made by saturate ") + SATURATE_VERSION +
         " report. The page needs no network.</p>\n" + kFooter + "</footer>\n";
}

// Names runs by the last part of their paths, or the full path if two are equal.
std::vector<ShownRun> named_apart(std::span<const RunReading> readings) {
  std::vector<ShownRun> runs;
  for (const auto& reading : readings) {
    const auto same = std::count_if(readings.begin(), readings.end(), [&](const RunReading& other) {
      return other.name == reading.name;
    });
    runs.push_back({&reading, same > 1 ? reading.folder : reading.name, figures_of(reading)});
  }
  return runs;
}

std::string contents(const std::vector<std::pair<std::string, std::string>>& sections) {
  std::string items;
  for (const auto& [id, title] : sections)
    items += "<li><a href=\"#" + id + "\">" + title + "</a></li>";
  return "<nav aria-label=\"Contents\"><ul>" + items + "</ul></nav>\n";
}

std::string body_of(const std::vector<ShownRun>& runs, const std::vector<LadderReading>& ladders) {
  struct Section {
    const char *id, *title;
    std::string html;
  };
  const std::vector<Section> sections = {
      {"time", "Where the time went", phases_section(runs)},
      {"curves", "Learning and speed", curves_section(runs)},
      {"classes", "Class by class", classes_section(runs)},
      {"machine", "The machine", machine_section(runs)},
      {"timeline", "A few steps", timeline_section(runs)},
      {"samples", "What it was shown", samples_section(runs)},
      {"mistakes", "Worst mistakes", mistakes_section(runs)},
      {"ladders", "Ladders and sweeps", ladders_section(ladders)},
      {"recipe", "Recipe", recipe_section(runs)},
      {"host", "Hardware and versions", host_section(runs)}};
  std::vector<std::pair<std::string, std::string>> shown;
  std::string html;
  for (const auto& section : sections) {
    if (section.html.empty()) continue;
    shown.emplace_back(section.id, section.title);
    html += std::string("<section id=\"") + section.id + "\">\n<h2>" + section.title + "</h2>\n" +
            section.html + "</section>\n";
  }
  return "<header>\n" + head_section(runs, ladders) + contents(shown) +
         "</header>\n<main id=\"main\">\n" + (runs.empty() ? "" : figures_section(runs)) + html +
         "</main>\n" + footer();
}

}  // namespace

std::string make_report(std::span<const RunReading> readings,
                        std::span<const LadderReading> measured) {
  const std::vector<ShownRun> runs = named_apart(readings);
  const std::vector<LadderReading> ladders(measured.begin(), measured.end());
  std::string title;
  for (const auto& run : runs) title += (title.empty() ? "" : " · ") + escape_html(run.name);
  for (const auto& ladder : ladders)
    title += (title.empty() ? "" : " · ") + escape_html(ladder.title);
  const std::string body = body_of(runs, ladders), data = chart_data(runs, ladders);
  return fill_page(page_html(), {{"title", title},
                                 {"css", page_css()},
                                 {"body", body},
                                 {"data", data},
                                 {"chart_js", chart_js()},
                                 {"timeline", timeline_js()},
                                 {"script", page_js()}});
}

}  // namespace saturate
