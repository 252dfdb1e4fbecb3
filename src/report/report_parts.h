// The sections of a report, as HTML. Each is empty if the runs have no data for it.
#pragma once

#include <string>
#include <vector>

#include "report/run_figures.h"

namespace saturate {

// A run as the page shows it.
struct ShownRun {
  const RunReading* reading;
  std::string name;  // unique on the page; not escaped
  RunFigures figures;
};

// Titles, state, warnings.
std::string head_section(const std::vector<ShownRun>& runs,
                         const std::vector<LadderReading>& ladders);
std::string figures_section(const std::vector<ShownRun>& runs);  // cards, or a table of differences
std::string phases_section(const std::vector<ShownRun>& runs);
std::string curves_section(const std::vector<ShownRun>& runs);
std::string classes_section(const std::vector<ShownRun>& runs);
std::string machine_section(const std::vector<ShownRun>& runs);
std::string timeline_section(const std::vector<ShownRun>& runs);
std::string samples_section(const std::vector<ShownRun>& runs);
std::string mistakes_section(const std::vector<ShownRun>& runs);
std::string ladders_section(const std::vector<LadderReading>& ladders);
std::string recipe_section(const std::vector<ShownRun>& runs);
std::string host_section(const std::vector<ShownRun>& runs);

// A chart's element. `title` and `detail` are HTML.
std::string chart_figure(const std::string& chart, const std::string& title,
                         const std::string& detail, const std::string& classes = "",
                         const std::string& plot_classes = "");

// The charts' data, read by page.js and timeline.js.
std::string chart_data(const std::vector<ShownRun>& runs,
                       const std::vector<LadderReading>& ladders);

}  // namespace saturate
