// Text that is safe in a report's page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate {

// JSON in pure ASCII that is safe inside a <script> element: no `<`, no U+2028. Invalid UTF-8
// becomes U+FFFD; numbers that are not finite become null.
std::string script_json(const nlohmann::ordered_json& json);

// The template with each {{name}} replaced. Inserted text is not expanded again. REQUIRES: every
// name of the template is given.
std::string fill_page(std::string_view page,
                      const std::vector<std::pair<std::string_view, std::string_view>>& parts);

}  // namespace saturate
