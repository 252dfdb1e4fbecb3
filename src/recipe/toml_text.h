// Parsing of TOML.
#pragma once

#include <toml++/toml.h>

#include <string>

namespace saturate {

// Fails with kUsage at "WHERE:LINE".
toml::table parse_toml(const std::string& text, const std::string& where);

}  // namespace saturate
