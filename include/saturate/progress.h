// Progress of long work on stderr: a live bar on a terminal, plain lines in a log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "saturate/env.h"

namespace saturate {

// "1m 05s", "2h 03m"; "n/a" where unknown.
std::string format_duration(std::optional<double> seconds);

// Counts towards a known total. Safe for one thread at a time.
//
// A line that is too long for the terminal goes without its bar, then without whole fields: the
// first of the details, the count, the other details from the left, the title. The last of the
// details and the time left stay longest.
class Progress {
 public:
  enum class Style {
    kAuto,   // kBar where `stream` is a terminal, else kLines
    kBar,    // one line, redrawn at most ten times a second; the cursor rests at its begin
    kLines,  // a line every ten seconds at most
    kSilent,
  };

  // `title` starts every line, `unit` names what is counted ("steps"). `stream` is not owned.
  Progress(Env& env, std::string title, std::string unit, int64_t total, Style style,
           std::FILE* stream = stderr);
  // Leaves the cursor on a fresh line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total; `details` follow the numbers: fields with two spaces between them, the
  // most important last ("loss 1.234  480 img/s").
  void update(int64_t done, const std::string& details);
  // Takes the bar away, for what is printed next.
  void finish() { erase(); }
  // A line of its own that stays, above the bar; made printable.
  void note(const std::string& line);
  // The same, shown by kSilent too.
  void warn(const std::string& line);
  // Starts the clock of the time left at `done`: work done earlier, by a resumed run, does not
  // count as done at this run's speed.
  void start_at(int64_t done);

 private:
  // At most `width` characters.
  std::string line(size_t width);
  void draw(const char* end);
  void erase();

  Env& env_;
  std::string title_, unit_;
  int64_t total_;
  Style style_;
  std::FILE* stream_;
  int64_t begin_ns_, last_ns_ = 0;
  int64_t begin_done_ = 0;
  int64_t done_ = 0;     // as last told
  std::string details_;  // likewise
  bool drawn_ = false;
};

}  // namespace saturate
