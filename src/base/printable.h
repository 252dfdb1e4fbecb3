// Text for terminals, and messages on stderr: text for people, or one JSON object a line for log
// collectors.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace saturate {

// Text from untrusted data, safe for a terminal: one line, without control sequences or
// bidirectional marks. Control characters (and raw bytes 0x80 to 0x9f outside UTF-8), direction
// marks and line separators become \x1b, byte by byte. URLs have no queries, as below. Everything
// else, UTF-8 or not, is unchanged.
std::string printable(const std::string& text);

// The same for text of several lines: line ends and tabs stay, URLs are whole, and a byte that is
// not UTF-8 becomes \x9b.
std::string printable_lines(const std::string& text);

// Text with the url_name() (base/url_text.h) of each URL.
std::string without_queries(const std::string& text);

// Text as UTF-8, as JSON needs it: a byte that belongs to no code point becomes \x9b. Names that
// differ in such bytes stay different; UTF-8, such text included, is unchanged.
std::string as_utf8(const std::string& text);

// Bytes of the start of `text` that leaves no UTF-8 character unfinished: all, or up to three
// fewer.
size_t whole_characters(std::string_view text);

// Text as one word of a shell command line, for copying: quoted if necessary, as $'...' if a quoted
// control character would still reach the terminal.
std::string shell_word(const std::string& text);

// Up to the first line break: torch's messages continue with a stack trace.
std::string first_line(std::string_view text);

// With that many decimals; from 1e6 on as 3.403e+38.
std::string decimal_text(double value, int decimals);
inline std::string format_loss(double loss) {
  return decimal_text(loss, 4);
}

// Whether a descriptor is a terminal that takes escape sequences: not if TERM is unset or "dumb".
bool takes_escapes(int descriptor);

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

// "saturate: warning: TEXT" on stderr, made printable.
void print_warning(const std::string& text);

}  // namespace saturate
