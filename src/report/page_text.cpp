#include "report/page_text.h"

#include <fmt/format.h>

#include <cmath>

#include "base/printable.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;
constexpr const char* kUnknown = "n/a";
constexpr const char* kGap = "\u202f";  // a narrow space that does not break

std::string valid_utf8(const std::string& text) {
  return nlohmann::json::parse(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string safe;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f')
          safe += "\ufffd";
        else
          safe += c;
    }
  }
  return safe;
}

std::string script_json(const ordered_json& json) {
  std::string safe;
  // In ASCII, so that U+2028 and similar are written as \u2028.
  for (const char c : json.dump(-1, ' ', true, ordered_json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&')
      safe += fmt::format("\\u{:04x}", int(c));
    else
      safe += c;
  }
  return safe;
}

std::string fill_page(std::string_view page,
                      const std::vector<std::pair<std::string_view, std::string_view>>& parts) {
  std::string filled;
  for (size_t at = 0;;) {
    const size_t open = page.find("{{", at), close = page.find("}}", open);
    if (close == std::string_view::npos) return filled.append(page.substr(at));
    filled.append(page.substr(at, open - at));
    for (const auto& [name, text] : parts)
      if (name == page.substr(open + 2, close - open - 2)) filled.append(text);
    at = close + 2;
  }
}

std::string percent_text(std::optional<double> share, int decimals) {
  if (!share) return kUnknown;
  return fmt::format("{:.{}f}{}%", *share * 100, decimals, kGap);
}

std::string count_text(int64_t count) {
  const std::string digits = std::to_string(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string decimal_text(std::optional<double> value, int decimals) {
  return value ? decimal_text(*value, decimals) : kUnknown;
}

std::string memory_text(std::optional<int64_t> bytes) {
  if (!bytes) return kUnknown;
  return fmt::format("{:.2f}{}GiB", double(*bytes) / (1 << 30), kGap);
}

std::string rate_text(std::optional<double> images_per_s) {
  if (!images_per_s) return kUnknown;
  const std::string number = *images_per_s < 10 ? fmt::format("{:.2f}", *images_per_s)
                                                : count_text(std::llround(*images_per_s));
  return fmt::format("{}{}images/s", number, kGap);
}

std::string time_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f}{}s", seconds, kGap);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}{}s", whole, kGap);
  if (whole < 3600) return fmt::format("{}{}min {:02}{}s", whole / 60, kGap, whole % 60, kGap);
  const int64_t minutes = std::llround(seconds / 60);
  return fmt::format("{}{}h {:02}{}min", minutes / 60, kGap, minutes % 60, kGap);
}

}  // namespace saturate
