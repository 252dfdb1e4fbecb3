// The sections of a report, as HTML. Each is empty where the runs hold nothing for it.
#pragma once

#include <string>
#include <vector>

#include "watch/run_figures.h"

namespace saturate {

// A run as the page shows it.
struct ShownRun {
  const RunReading* reading;
  std::string name;  // unlike any other's on the page; not escaped
  RunFigures figures;
};

std::string head_section(const std::vector<ShownRun>& runs);     // titles, state, warnings
std::string figures_section(const std::vector<ShownRun>& runs);  // cards, or a table of differences
std::string phases_section(const std::vector<ShownRun>& runs);
std::string curves_section(const std::vector<ShownRun>& runs);
std::string recipe_section(const std::vector<ShownRun>& runs);
std::string host_section(const std::vector<ShownRun>& runs);

// For the charts; page.js reads it.
std::string chart_data(const std::vector<ShownRun>& runs);

}  // namespace saturate
