#pragma once

#include <string>

namespace saturate {

// "." for a path without a slash.
inline std::string parent_folder(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace saturate
