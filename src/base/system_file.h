// Files of /proc, /sys and control groups. Env cannot read them, since it goes by their size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace saturate {

// The rest of the first line that begins with `prefix`, without the colon and spaces after that;
// "" if there is none.
inline std::string system_line(const std::string& path, std::string_view prefix = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(prefix))
      return line.substr(std::min(line.find_first_not_of(": \t", prefix.size()), line.size()));
  return "";
}

// The number at its beginning; 0 if there is none, as in "max".
inline uint64_t system_number(const std::string& path, std::string_view prefix = "") {
  return std::strtoull(system_line(path, prefix).c_str(), nullptr, 10);
}

}  // namespace saturate
