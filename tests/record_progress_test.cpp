// The progress display on a terminal of a given width.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/printable.h"
#include "saturate/progress.h"

namespace saturate {
namespace {

// A terminal, which records the text written to it.
class Terminal {
 public:
  explicit Terminal(int width) {
    winsize size{};
    size.ws_col = uint16_t(width);
    size.ws_row = 24;
    if (openpty(&master_, &slave_, nullptr, nullptr, &size) != 0)
      throw std::runtime_error("no terminal can be opened");
    stream = fdopen(slave_, "w");
    setvbuf(stream, nullptr, _IONBF, 0);
  }
  ~Terminal() {
    std::fclose(stream);
    close(master_);
  }
  void resize(int width) {
    winsize size{};
    size.ws_col = uint16_t(width);
    ioctl(master_, TIOCSWINSZ, &size);
  }
  // The text written since the last call: all text before a mark that is written now.
  std::string written() {
    std::fputc('\0', stream);
    std::string text;
    for (char c = 0; read(master_, &c, 1) == 1 && c != '\0';) text += c;
    return text;
  }
  std::FILE* stream = nullptr;

 private:
  int master_ = -1, slave_ = -1;
};

// The part of a redrawn line that stays visible.
std::string visible_text(const std::string& written) {
  return std::regex_replace(written, std::regex("\x1b\\[[?0-9]*[A-Za-z]|\x1b[78]|\r|\n"), "");
}

constexpr const char* kDetails = "epoch 1.3/3  loss 1.2345  acc 91.20%  12480 img/s";

std::string line_at(int width, const std::string& details = kDetails) {
  Terminal terminal(width);
  std::string text;
  {
    Progress progress(Env::posix(), "train", "steps", 300, Progress::Style::kBar, terminal.stream);
    progress.update(125, details);
    text = visible_text(terminal.written());
    progress.finish();
  }
  return text;
}

TEST(ProgressWidth, TheBarIsDroppedFirstThenWholeFields) {
  const std::string whole =
      "train [========            ]  41% 125/300 steps  epoch 1.3/3  loss 1.2345  acc 91.20%  "
      "12480 img/s  left ";
  EXPECT_EQ(line_at(200).substr(0, whole.size()), whole);
  const auto expect = [](int width, const std::string& begin) {
    const std::string line = line_at(width);
    EXPECT_LT(line.size(), size_t(width)) << line;
    EXPECT_EQ(line.substr(0, begin.size()), begin) << width;
    EXPECT_TRUE(std::regex_search(line, std::regex("  left [0-9.]+s$"))) << line;
  };
  expect(80, "train  41% 125/300 steps  loss 1.2345  acc 91.20%  12480 img/s  left ");
  expect(60, "train  41%  loss 1.2345  acc 91.20%  12480 img/s  left ");
  expect(56, "train  41%  acc 91.20%  12480 img/s  left ");
  expect(40, "train  41%  12480 img/s  left ");
  expect(32, "41%  12480 img/s  left ");
}

TEST(ProgressWidth, NoNumberIsTruncatedOnAnyTerminal) {
  const std::vector<std::string> fields = {
      "train", "41%", "125/300 steps", "epoch 1.3/3", "loss 1.2345", "acc 91.20%", "12480 img/s"};
  for (int width = 1; width < 130; ++width) {
    std::string line = line_at(width);
    EXPECT_LT(line.size(), size_t(std::max(width, 2))) << line;
    line = std::regex_replace(line, std::regex("\\[[= ]*\\]|  left [0-9.]+s$"), "");
    for (const auto& field : fields)
      if (const auto at = line.find(field); at != std::string::npos) line.erase(at, field.size());
    EXPECT_EQ(line.find_first_not_of(' '), std::string::npos) << width << ": " << line;
  }
}

// The cursor waits at the line's start, so that all rows it becomes on a narrower terminal are
// erased.
TEST(ProgressWidth, ANarrowerTerminalKeepsNoRowOfTheFormerLine) {
  Terminal terminal(120);
  Progress progress(Env::posix(), "train", "steps", 100, Progress::Style::kBar, terminal.stream);
  progress.update(10, kDetails);
  const std::string wide = terminal.written();
  EXPECT_TRUE(wide.ends_with("\r")) << "the cursor is back at the start";
  EXPECT_NE(wide.find("\x1b[?7l"), std::string::npos) << "lines do not wrap meanwhile";
  EXPECT_NE(wide.find("\x1b[?7h"), std::string::npos);
  terminal.resize(40);
  progress.update(100, kDetails);
  const std::string narrow = terminal.written();
  EXPECT_TRUE(narrow.starts_with("\r\x1b\x37\x1b[B\x1b[2K\x1b[B\x1b[2K\x1b[B"))
      << "the rows below are erased";
  EXPECT_EQ(narrow.find("\x1b[J"), std::string::npos) << "tmux would keep it in its history";
  EXPECT_LT(visible_text(narrow).size(), 40u);
  progress.note("a line that stays");
  EXPECT_TRUE(terminal.written().ends_with("\x1b[Ka line that stays\r\n"));
}

TEST(ProgressWidth, TheEndIsDrawnForThePresentWidth) {
  Terminal terminal(120);
  {
    Progress progress(Env::posix(), "train", "steps", 100, Progress::Style::kBar, terminal.stream);
    progress.update(100, kDetails);
    terminal.written();
    terminal.resize(40);
  }
  const std::string last = terminal.written();
  EXPECT_LT(visible_text(last).size(), 40u) << last;
  EXPECT_TRUE(last.ends_with("\n"));
}

TEST(FormatLoss, HasFourDecimalsUpToAMillion) {
  EXPECT_EQ(format_loss(1.23456), "1.2346");
  EXPECT_EQ(format_loss(999999.5), "999999.5000");
  EXPECT_EQ(format_loss(1e6), "1e+06");
  EXPECT_EQ(format_loss(-3.40282347e38), "-3.403e+38");
  EXPECT_EQ(format_loss(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(format_loss(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Progress, ATerminalWithoutEscapesGetsPlainLines) {
  const char* const set = std::getenv("TERM");
  const std::string before = set ? set : "dumb";
  for (const char* kind : {"xterm", "dumb", ""}) {
    setenv("TERM", kind, 1);
    Terminal terminal(80);
    Progress progress(Env::posix(), "train", "steps", 100, Progress::Style::kAuto, terminal.stream);
    progress.update(1, kDetails);
    progress.note("a line");
    const std::string text = terminal.written();
    EXPECT_EQ(text.find('\x1b') != std::string::npos, kind == std::string("xterm")) << kind;
    EXPECT_TRUE(text.ends_with("a line\r\n")) << text;
  }
  setenv("TERM", before.c_str(), 1);
}

TEST(Progress, AWarningHasItsLevelInJson) {
  Terminal terminal(80);
  Progress progress(Env::posix(), "train", "steps", 100, Progress::Style::kSilent, terminal.stream);
  setenv(kLogFormatVariable, "json", 1);
  progress.warn("it was not saved");
  unsetenv(kLogFormatVariable);
  const auto line = nlohmann::json::parse(terminal.written());
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["message"], "it was not saved");
}

TEST(ProgressWidth, NotesAreMadePrintable) {
  Terminal terminal(80);
  Progress progress(Env::posix(), "train", "steps", 100, Progress::Style::kSilent, terminal.stream);
  progress.warn("class \x9b\x32J\u202e");
  EXPECT_EQ(terminal.written(), "saturate: warning: class \\x9b2J\\xe2\\x80\\xae\r\n");
}

}  // namespace
}  // namespace saturate
