#include "base/printable.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "base/url_text.h"
#include "saturate/data/error.h"
#include "saturate/data/world.h"

namespace saturate {
namespace {

using Byte = unsigned char;

struct CodePoint {
  uint32_t value;
  size_t length;  // bytes
};

// A byte that is not valid UTF-8 becomes one code point, as on an 8-bit terminal.
CodePoint code_point(std::string_view text, size_t at) {
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};  // by length
  const Byte first = Byte(text[at]);
  const size_t length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 1 || first > 0xf4 || at + length > text.size()) return {first, 1};
  uint32_t value = first & (0x7fu >> length);
  for (size_t i = at + 1; i < at + length; ++i) {
    if ((Byte(text[i]) & 0xc0) != 0x80) return {first, 1};
    value = value << 6 | (Byte(text[i]) & 0x3fu);
  }
  const bool is_surrogate = value >= 0xd800 && value < 0xe000;
  return value < kLeast[length] || is_surrogate || value > 0x10ffff ? CodePoint{first, 1}
                                                                    : CodePoint{value, length};
}

// C0 and C1 controls, bidirectional marks, line separators.
bool is_harmful(const CodePoint& point) {
  const uint32_t value = point.value;
  const auto within = [value](uint32_t low, uint32_t high) {
    return value >= low && value <= high;
  };
  return value < 0x20 || within(0x7f, 0x9f) || value == 0x61c || within(0x200e, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2066, 0x2069);
}

// Writes each byte of a code point that `is_bad` as \x1b; `others` writes the other code points.
template <class IsBad, class Others>
std::string escaped(const std::string& text, const IsBad& is_bad, const Others& others) {
  std::string safe;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point(text, at);
    const std::string_view bytes = std::string_view(text).substr(at, point.length);
    if (is_bad(point))
      for (const char c : bytes) safe += fmt::format("\\x{:02x}", Byte(c));
    else
      others(safe, bytes);
    at += point.length;
  }
  return safe;
}

void append_bytes(std::string& safe, std::string_view bytes) {
  safe += bytes;
}

bool is_plain(char c) {
  return is_letter_or_digit(c) || std::string_view("_-+=:,./@%").find(c) != std::string_view::npos;
}

// URLs and paths between commas, and the punctuation of a sentence after them.
std::string without_queries_of_list(std::string_view word) {
  const size_t end = word.find_last_not_of(":;,.") + 1;
  std::string shown;
  const char* mark = "";
  bool in_query = false;
  for (const std::string& part : split_text(word.substr(0, end), ',')) {
    in_query = in_query && part.find("://") == part.npos;
    if (in_query && (part.find('&') != part.npos || is_signing(part))) continue;
    const std::string name = url_name(part);
    in_query = in_query || name.size() < part.size();
    shown.append(std::exchange(mark, ",")).append(name);
  }
  return shown.append(word.substr(end));
}

constexpr const char* kLevels[] = {"info", "warning", "error"};
constexpr std::string_view kJsonStart = "{\"";

// ISO 8601, UTC, milliseconds.
std::string time_text() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     now.tv_nsec / 1'000'000);
}

std::optional<int> own_rank() {
  try {
    const World world = this_world();
    return world.size > 1 ? std::optional(world.rank) : std::nullopt;
  } catch (const Error&) {  // reported where the world is needed
    return std::nullopt;
  }
}

void write_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace

std::string without_queries(const std::string& text) {
  if (text.find("://") == text.npos && !has_signature(text)) return text;
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t\r\n\"'()<>", at), text.size());
    shown += without_queries_of_list(std::string_view(text).substr(at, end - at));
    if (end < text.size()) shown += text[end];
    at = end + 1;
  }
  return shown;
}

std::string printable(const std::string& text) {
  return escaped(without_queries(text), is_harmful, append_bytes);
}

std::string printable_lines(const std::string& text) {
  const auto is_bad = [](const CodePoint& point) {
    return point.value != '\n' && point.value != '\t' && is_harmful(point);
  };
  return escaped(as_utf8(text), is_bad, append_bytes);
}

std::string as_utf8(const std::string& text) {
  const auto is_stray = [](const CodePoint& point) {
    return point.length == 1 && point.value >= 0x80;
  };
  return escaped(text, is_stray, append_bytes);
}

size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const Byte byte = Byte(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte < 0xc2 || byte > 0xf4 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::string shell_word(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  if (escaped(text, is_harmful, append_bytes) == text) {
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
  }
  return "$'" +
         escaped(text, is_harmful,
                 [](std::string& safe, std::string_view bytes) {
                   if (bytes == "'" || bytes == "\\") safe += '\\';
                   safe += bytes;
                 }) +
         "'";
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string decimal_text(double value, int decimals) {
  return std::abs(value) < 1e6 ? fmt::format("{:.{}f}", value, decimals)
                               : fmt::format("{:.4g}", value);
}

bool takes_escapes(int descriptor) {
  const char* const kind = std::getenv("TERM");
  return kind && *kind && std::string_view(kind) != "dumb" && isatty(descriptor) == 1;
}

bool logs_json() {
  const char* const format = std::getenv(kLogFormatVariable);
  return format && std::string_view(format) == "json";
}

std::string log_line(LogLevel level, const std::string& sender, const std::string& text,
                     std::optional<int> rank, bool timed) {
  const char* const name = kLevels[static_cast<int>(level)];
  if (logs_json()) {
    nlohmann::ordered_json line;
    if (timed) line["time"] = time_text();
    line["level"] = name;
    if (!rank) rank = own_rank();
    if (rank) line["rank"] = *rank;
    line["message"] = as_utf8(text);
    return line.dump();
  }
  std::string prefix = sender.empty() ? "" : sender + ": ";
  if (level != LogLevel::kInfo) prefix += std::string(name) + ": ";
  return prefix + text;
}

void print_log(LogLevel level, const std::string& sender, const std::string& text,
               std::optional<int> rank) {
  write_line(log_line(level, sender, text, rank));
}

void print_line_of_rank(int rank, const std::string& line) {
  if (!logs_json())
    write_line(fmt::format("[{}] {}", rank, line));
  else if (line.starts_with(kJsonStart))
    write_line(line);
  else
    print_log(LogLevel::kInfo, "", line, rank);
}

void print_warning(const std::string& text) {
  print_log(LogLevel::kWarning, "saturate", printable(text));
}

}  // namespace saturate
