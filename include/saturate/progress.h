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
class Progress {
 public:
  enum class Style {
    kAuto,   // kBar where `stream` is a terminal, else kLines
    kBar,    // one line, redrawn at most ten times a second
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

  // `done` of the total; `details` follows the numbers ("loss 1.234").
  void update(int64_t done, const std::string& details);
  // Takes the bar away, for what is printed next.
  void finish() { erase(); }
  // A line of its own that stays, above the bar.
  void note(const std::string& line);
  // The same, shown by kSilent too.
  void warn(const std::string& line);
  // Starts the clock of the time left at `done`: work done earlier, by a resumed run, does not
  // count as done at this run's speed.
  void start_at(int64_t done);

 private:
  std::string line(int64_t done, const std::string& details);
  void erase();

  Env& env_;
  std::string title_, unit_;
  int64_t total_;
  Style style_;
  std::FILE* stream_;
  int64_t begin_ns_, last_ns_ = 0;
  int64_t begin_done_ = 0;
  bool drawn_ = false;
};

}  // namespace saturate
