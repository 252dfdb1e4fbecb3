// SPDX-License-Identifier: BSD-3-Clause
// Progress of long operations on stderr: a live bar on a terminal, plain lines in a log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

// "1m 05s", "2h 03m"; "n/a" where unknown.
std::string format_duration(std::optional<double> seconds);

// Counts towards a known total. To be used from one thread at a time.
//
// A line that is too long for the terminal loses its bar, then whole fields: the first of the
// details, the count, the other details from the left, the title. The last detail and the remaining
// time are kept longest.
class Progress {
 public:
  enum class Style {
    kAuto,   // kBar if `stream` is a terminal that can redraw a line, else kLines
    kBar,    // one line, redrawn at most ten times a second; the cursor stays at its beginning
    kLines,  // at most one line every ten seconds
    kSilent,
  };

  // `title` starts every line, `unit` names what is counted ("steps"). `stream` is not owned.
  Progress(Env& env, std::string title, std::string unit, int64_t total, Style style,
           std::FILE* stream = stderr);
  // Leaves the cursor on a new line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total; `details` follow the numbers: fields separated by two spaces, the most
  // important last ("loss 1.234  480 img/s").
  void update(int64_t done, const std::string& details);
  // Removes the bar, for other output.
  void finish() { erase(); }
  // A permanent line above the bar; made printable.
  void note(const std::string& line);
  // The same as a warning, "saturate: warning: LINE"; also with kSilent.
  void warn(const std::string& line);
  // Starts the clock for the remaining time at `done`: work of an earlier run does not count for
  // this run's speed.
  void start_at(int64_t done);

 private:
  // At most `width` characters.
  std::string line(size_t width);
  void draw(const char* end);
  void erase();
  // Above the bar.
  void write(const std::string& line);

  Env& env_;
  std::string title_, unit_;
  int64_t total_;
  Style style_;
  std::FILE* stream_;
  int64_t begin_ns_, last_ns_ = 0;
  int64_t begin_done_ = 0;
  int64_t done_ = 0;     // at the last update
  std::string details_;  // at the last update
  bool drawn_ = false;
};

}  // namespace saturate
