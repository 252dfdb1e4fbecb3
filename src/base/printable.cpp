#include "base/printable.h"

#include <fmt/format.h>

namespace saturate {
namespace {

using Byte = unsigned char;

// Of a control character at `at`: bytes it has, else 0. U+0080 to U+009F, which some terminals
// obey as they obey escape sequences, are two in UTF-8.
size_t control_length(const std::string& text, size_t at) {
  const Byte first = Byte(text[at]);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first != 0xc2 || at + 1 == text.size()) return 0;
  const Byte second = Byte(text[at + 1]);
  return second >= 0x80 && second < 0xa0 ? 2 : 0;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string safe;
  for (size_t at = 0; at < text.size();) {
    const size_t length = control_length(text, at);
    for (size_t i = at; i < at + length; ++i) safe += fmt::format("\\x{:02x}", Byte(text[i]));
    if (length == 0) safe += text[at];
    at += length == 0 ? 1 : length;
  }
  return safe;
}

}  // namespace saturate
