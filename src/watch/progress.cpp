#include "saturate/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

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
  if (style_ == Style::kAuto) style_ = isatty(fileno(stream)) ? Style::kBar : Style::kLines;
}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stream_);
}

void Progress::start_at(int64_t done) {
  begin_done_ = done;
  begin_ns_ = env_.now_ns();
}

std::string Progress::line(int64_t done, const std::string& details) {
  const double elapsed = double(env_.now_ns() - begin_ns_) * 1e-9;
  std::optional<double> left;
  if (done > begin_done_) left = elapsed * double(total_ - done) / double(done - begin_done_);
  const double share = total_ > 0 ? double(done) / double(total_) : 1;
  std::string text = title_ + " ";
  if (style_ == Style::kBar) text += bar(share) + " ";
  text += fmt::format("{:3.0f}% {}/{} {}", std::floor(share * 100), done, total_, unit_);
  if (!details.empty()) text += "  " + printable(details);
  return text + "  left " + format_duration(left);
}

void Progress::update(int64_t done, const std::string& details) {
  if (style_ == Style::kSilent) return;
  const int64_t now = env_.now_ns();
  const int64_t interval = style_ == Style::kBar ? kBarInterval : kLineInterval;
  const int64_t last = last_ns_ ? last_ns_ : (style_ == Style::kBar ? now - interval : begin_ns_);
  if (now - last < interval && !(style_ == Style::kBar && done == total_)) return;
  last_ns_ = now;
  std::string text = line(done, details);
  if (style_ == Style::kLines) {
    fmt::print(stream_, "{}\n", text);
  } else {
    // Longer than the terminal it would wrap, and a wrapped line cannot be redrawn.
    text.resize(std::min(text.size(), size_t(std::max(1, terminal_width(stream_) - 1))));
    fmt::print(stream_, "\r\x1b[K{}", text);
    drawn_ = true;
  }
  std::fflush(stream_);
}

void Progress::erase() {
  if (drawn_) std::fputs("\r\x1b[K", stream_);
  drawn_ = false;
}

void Progress::note(const std::string& line_text) {
  if (style_ != Style::kSilent) warn(line_text);
}

void Progress::warn(const std::string& line_text) {
  erase();
  fmt::print(stream_, "{}\n", line_text);
  std::fflush(stream_);
}

}  // namespace saturate
