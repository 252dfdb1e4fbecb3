// Messages between a measuring process and its parent, one JSON object per line:
//
//   parent: {"measure": seconds}     process: {"ready": true}, once; then, for each measurement,
//                                             {"steps", "samples", "wall_s", "cpu_s", "phases",
//                                             ...} or, as its last line, {"error", "kind", ...}
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "advise/ladder.h"

namespace saturate {

nlohmann::json to_json(const RungTiming& timing);
RungTiming timing_from_json(const nlohmann::json& json);

nlohmann::json to_json(const Error& error);
[[noreturn]] void throw_from_json(const nlohmann::json& json);

// Lines from a file descriptor, which the caller keeps.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Waits for more for at most so many milliseconds (-1: without a limit), or until a signal. Empty
  // if no line has come; see ended().
  std::optional<std::string> next(int milliseconds);
  // Whether no more lines will come.
  bool ended() const { return ended_; }

 private:
  int fd_;
  std::string unread_;
  bool ended_ = false;
};

// False if the other end is closed.
bool write_line(int fd, const nlohmann::json& line);

}  // namespace saturate
