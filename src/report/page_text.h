// Text for a report: escaped and formatted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate {

// For text and quoted attributes of HTML. Invalid UTF-8 and control characters become U+FFFD.
std::string escape_html(const std::string& text);

// JSON in pure ASCII that is safe inside a <script> element: no `<`, no U+2028.
std::string script_json(const nlohmann::ordered_json& json);

// The template with each {{name}} replaced. Inserted text is not expanded again. REQUIRES: every
// name of the template is given.
std::string fill_page(std::string_view page,
                      const std::vector<std::pair<std::string_view, std::string_view>>& parts);

// Figures with their unit as HTML, "n/a" if unknown.
std::string percent_text(std::optional<double> share, int decimals = 2);
std::string count_text(int64_t count);  // "5,850"
std::string decimal_text(std::optional<double> value, int decimals);
std::string memory_text(std::optional<int64_t> bytes);
std::string rate_text(std::optional<double> images_per_s);
// "42 s", "4 min 05 s", "2 h 03 min".
std::string time_text(double seconds);

}  // namespace saturate
