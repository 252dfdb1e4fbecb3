// The static parts of every report, embedded by cmake/Embed.cmake.
#pragma once

#include <string_view>

namespace saturate {

std::string_view page_html();  // with {{name}} placeholders
std::string_view page_css();
std::string_view page_js();   // the scripts of page/, one after the other
std::string_view chart_js();  // Chart.js, MIT licence

}  // namespace saturate
