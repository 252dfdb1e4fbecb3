#pragma once

#include <string>

namespace saturate {

// Text from data as a terminal may have it: a control character, which could do anything there,
// becomes \x1b, and text stays one line. All else, UTF-8 or not, is left as it is.
std::string printable(const std::string& text);

}  // namespace saturate
