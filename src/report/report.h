// A report: one self-contained HTML page that shows a run or compares several.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/run_reading.h"
#include "saturate/data/env.h"

namespace saturate {

// The JSON document that the page is built from: {"phases", "options", "defaults", "runs",
// "ladders"}, figures and texts as the files have them, neither rounded nor escaped. Unknown values
// are null. Runs are named by the last part of their folders, or by whole paths if two are equal.
nlohmann::ordered_json report_data(std::span<const RunReading> runs,
                                   std::span<const LadderReading> ladders);

// JSON in pure ASCII that is safe inside a <script> element: no `<`, no U+2028. Invalid UTF-8
// becomes U+FFFD; numbers that are not finite become null.
std::string script_json(const nlohmann::ordered_json& json);

// The template with each {{name}} replaced. Inserted text is not expanded again. REQUIRES: every
// name of the template is given.
std::string fill_page(std::string_view page,
                      const std::vector<std::pair<std::string_view, std::string_view>>& parts);

// The static parts of every report, embedded by cmake/Embed.cmake.
std::string_view page_html();  // with {{name}} placeholders
std::string_view page_css();
std::string_view page_js();   // the scripts of page/, one after the other
std::string_view chart_js();  // Chart.js, MIT licence

// REQUIRES: at least one run or ladder.
std::string make_report(std::span<const RunReading> runs,
                        std::span<const LadderReading> ladders = {});

// The file of a report of run folders, and of files (.json) that ladder or sweep wrote: `out`, or
// if that is empty report.html, in the run's folder if there is one run.
std::string report_path(Env& env, const std::vector<std::string>& inputs, const std::string& out);

// Writes that file, and returns its path. Prints the runs' warnings. Fails with kUsage if an input
// is given twice, if the file is a folder or exists and is no HTML page, or if `out` is empty and
// the file is a symbolic link. REQUIRES: at least one input.
std::string write_report(Env& env, const std::vector<std::string>& inputs, const std::string& out);

}  // namespace saturate
