// Options of sources that draw their samples: "KEY=NUMBER,...".
#pragma once

#include <charconv>
#include <string>
#include <system_error>

#include "data/path_list.h"
#include "saturate/data/error.h"

namespace saturate {

struct SynthNumbers {
  const char* scheme;
  std::string& left;  // begins with a comma

  // Removes KEY=NUMBER, if there is one. Fails with kUsage on anything but a number in the range.
  template <class T>
  void take(const char* key, T low, T high, T& out) const {
    const std::string text = take_option(left, key);
    if (text.empty()) return;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc() && end == text.data() + text.size() && out >= low && out <= high)
      return;
    const std::string range =
        "a number from " + std::to_string(low) + " to " + std::to_string(high);
    fail(ErrorKind::kUsage, std::string(scheme) + " " + key + "=" + text + " is not " + range,
         "data.source", std::string("Set ") + key + " to " + range);
  }

  // Fails with kUsage if an option was not taken.
  void require_none(const std::string& known) const {
    if (left.find_first_not_of(',') == std::string::npos) return;
    fail(ErrorKind::kUsage, std::string(scheme) + " has no option \"" + left.substr(1) + "\"",
         "data.source", "Its options are " + known + ", as KEY=VALUE");
  }
};

}  // namespace saturate
