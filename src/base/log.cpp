#include "base/log.h"

#include <fmt/format.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/printable.h"
#include "saturate/data/error.h"
#include "saturate/data/world.h"

namespace saturate {
namespace {

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

}  // namespace saturate
