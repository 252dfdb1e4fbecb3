// Messages on stderr: text for people, or one JSON object a line for log collectors.
#pragma once

#include <optional>
#include <string>

namespace saturate {

enum class LogLevel { kInfo, kWarning, kError };

// The environment variable by which --log-format reaches this process and all that it starts.
inline constexpr const char* kLogFormatVariable = "SATURATE_LOG_FORMAT";
bool logs_json();

// The line of a message, without its line break: "SENDER: warning: TEXT" (just TEXT for kInfo
// without a sender), or {"time", "level", "rank", "message"}. `rank`: of the process concerned, by
// default this one, where there are several. `timed` false: to be written later, without "time".
std::string log_line(LogLevel level, const std::string& sender, const std::string& text,
                     std::optional<int> rank = {}, bool timed = true);

// Writes log_line() to stderr. Does not fail if stderr cannot be written, as on a full disk.
void print_log(LogLevel level, const std::string& sender, const std::string& text,
               std::optional<int> rank = {});

// A line that another process of the run wrote: as "[RANK] LINE"; JSON, if it is that, unchanged.
void print_line_of_rank(int rank, const std::string& line);

}  // namespace saturate
