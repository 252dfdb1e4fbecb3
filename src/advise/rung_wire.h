// Messages between a measuring process and its parent, one JSON object a line:
//
//   parent: {"measure": seconds}     process: {"ready": true}, once; then, for each measurement,
//                                             {"steps", "samples", "wall_s", "cpu_s", "phases",
//                                             ...} or, as its last word, {"error", "kind", ...}
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

// Lines over a file descriptor, which stays its owner's.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Waits so many milliseconds for more at most, and no longer than to a signal; -1: for ever.
  // Empty where no line has come; see ended().
  std::optional<std::string> next(int milliseconds);
  // No line will come any more.
  bool ended() const { return ended_; }

 private:
  int fd_;
  std::string unread_;
  bool ended_ = false;
};

// False where nobody reads any more.
bool write_line(int fd, const nlohmann::json& line);

}  // namespace saturate
