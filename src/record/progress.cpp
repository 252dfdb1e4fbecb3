#include "saturate/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/printable.h"

namespace saturate {
namespace {

constexpr int64_t kBarInterval = 100'000'000;      // ns
constexpr int64_t kLineInterval = 10'000'000'000;  // ns
constexpr int kBarCells = 20;

int terminal_width(std::FILE* stream) {
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar(double share) {
  const int filled = int(std::lround(std::clamp(share, 0.0, 1.0) * kBarCells));
  return fmt::format("[{:<{}}]", std::string(size_t(filled), '='), kBarCells);
}

// A stream that cannot be written, as on a full disk, must not end the run.
template <class... Values>
void show_text(std::FILE* stream, fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stream);
}

// In a narrow terminal parts are dropped from the end of this list first.
enum class LinePart { kPercent, kLeft, kLastDetail, kTitle, kDetail, kCount, kFirstDetail, kBar };

struct TextPart {
  std::string text;
  LinePart kind;
};

// Drops as many parts as needed; of equal ones the first goes first.
std::string fitted(std::vector<TextPart> parts, size_t width) {
  for (;; parts.erase(std::ranges::max_element(parts, {}, &TextPart::kind))) {
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    text.erase(0, text.find_first_not_of(' '));
    if (text.size() <= width) return text;
  }
}

// Fields are separated by two spaces.
std::vector<std::string> fields_of(const std::string& details) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < details.size();) {
    const size_t end = std::min(details.find("  ", at), details.size());
    fields.push_back(details.substr(at, end - at));
    at = end + 2;
  }
  return fields;
}

}  // namespace

std::string format_duration(std::optional<double> seconds) {
  if (!seconds || !std::isfinite(*seconds)) return "n/a";
  const int64_t whole = std::llround(*seconds);
  if (*seconds < 9.95) return fmt::format("{:.1f}s", *seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

Progress::Progress(Env& env, std::string title, std::string unit, int64_t total, Style style,
                   std::FILE* stream)
    : env_(env),
      title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      style_(style),
      stream_(stream),
      begin_ns_(env.now_ns()) {
  if (style_ == Style::kAuto)
    style_ = takes_escapes(fileno(stream)) && !logs_json() ? Style::kBar : Style::kLines;
}

// Erase again, as the terminal may have become narrower since.
Progress::~Progress() {
  if (!drawn_) return;
  erase();
  draw("\n");
}

void Progress::start_at(int64_t done) {
  begin_done_ = done;
  begin_ns_ = env_.now_ns();
}

std::string Progress::line(size_t width) {
  const double elapsed = double(env_.now_ns() - begin_ns_) * 1e-9;
  std::optional<double> left;
  if (done_ > begin_done_) left = elapsed * double(total_ - done_) / double(done_ - begin_done_);
  const double share = total_ > 0 ? double(done_) / double(total_) : 1;
  const auto details = fields_of(printable(details_));

  std::vector<TextPart> parts = {{title_ + " ", LinePart::kTitle}};
  if (style_ == Style::kBar) parts.push_back({bar(share) + " ", LinePart::kBar});
  parts.push_back({fmt::format("{:3.0f}%", std::floor(share * 100)), LinePart::kPercent});
  parts.push_back({fmt::format(" {}/{} {}", done_, total_, unit_), LinePart::kCount});
  for (size_t i = 0; i < details.size(); ++i) {
    const bool last = i + 1 == details.size();
    parts.push_back({"  " + details[i], last     ? LinePart::kLastDetail
                                        : i == 0 ? LinePart::kFirstDetail
                                                 : LinePart::kDetail});
  }
  parts.push_back({"  left " + format_duration(left), LinePart::kLeft});
  return fitted(std::move(parts), width);
}

void Progress::update(int64_t done, const std::string& details) {
  if (style_ == Style::kSilent) return;
  const int64_t now = env_.now_ns();
  const int64_t interval = style_ == Style::kBar ? kBarInterval : kLineInterval;
  const int64_t last = last_ns_ ? last_ns_ : (style_ == Style::kBar ? now - interval : begin_ns_);
  if (now - last < interval && !(style_ == Style::kBar && done == total_)) return;
  last_ns_ = now;
  if (style_ == Style::kBar) erase();
  done_ = done;
  details_ = details;
  if (style_ == Style::kLines)
    show_text(stream_, "{}\n", log_line(LogLevel::kInfo, "", line(std::string::npos)));
  else
    draw("\r");
  std::fflush(stream_);
}

// The cursor stays at the beginning of the line: if the terminal becomes narrower, the line wraps
// below it. Wrapping is turned off meanwhile, as the width may be out of date.
void Progress::draw(const char* end) {
  show_text(stream_, "\r\x1b[K\x1b[?7l{}\x1b[?7h{}", line(size_t(terminal_width(stream_) - 1)),
            end);
  drawn_ = true;
}

// Includes the rows into which a narrower terminal may have wrapped the line. Does not erase the
// rest of the screen, which tmux would keep in its history if the line is the first.
void Progress::erase() {
  if (drawn_) {
    constexpr size_t kSlack = 16;  // the time left may have had another length
    const size_t longest = line(std::string::npos).size() + kSlack;
    const size_t width = size_t(terminal_width(stream_));
    std::string below;
    for (size_t at = width; at < longest; at += width) below += "\x1b[B\x1b[2K";
    if (!below.empty()) below = "\0337" + below + "\0338";  // the cursor comes back
    show_text(stream_, "\r{}\x1b[K", below);
  }
  drawn_ = false;
}

void Progress::write(const std::string& line_text) {
  erase();
  show_text(stream_, "{}\n", line_text);
  std::fflush(stream_);
}

void Progress::note(const std::string& line_text) {
  if (style_ != Style::kSilent) write(log_line(LogLevel::kInfo, "", printable(line_text)));
}

void Progress::warn(const std::string& line_text) {
  write(log_line(LogLevel::kWarning, "saturate", printable(line_text)));
}

}  // namespace saturate
