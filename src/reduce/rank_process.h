// One process that a launcher starts, and its output.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reduce/sockets.h"

namespace saturate {

struct RankCommand {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> variables;
  int listening = -1;  // a socket to inherit as SATURATE_LISTEN_FD, if any
};

inline double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// Killed by the system when the launcher ends for whatever reason; in its own process group, so
// that a terminal's Ctrl-C reaches the launcher only.
class RankProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `rank` 0 inherits the launcher's standard output, and its standard error if that is a terminal.
  RankProcess(int rank, const RankCommand& command);
  // Kills it if it still runs.
  ~RankProcess();
  RankProcess(RankProcess&&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Descriptors to poll for reading.
  std::vector<int> descriptors() const;
  // Reads pending output: prints its lines prefixed with the rank, records its position.
  void read_all();
  // Whether it has ended, without waiting. If so, its last output has been read.
  bool ended();
  // 128 + N if signal N ended it. REQUIRES: ended().
  int exit_code() const;
  bool killed() const;
  void signal(int number) const;

  // The end of its output; without what it writes to a terminal directly.
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  bool on_terminal() const { return on_terminal_; }
  const std::string& position() const { return position_; }  // "step 3, in forward"; "" until known
  const std::string& folder() const { return folder_; }      // the run's, as reported by rank 0
  bool lost_peer() const { return lost_peer_; }       // it reported that another process ended
  Clock::time_point heard() const { return heard_; }  // time of the last report
  Clock::time_point moved() const { return moved_; }  // time of the last change of position

 private:
  struct Stream {
    Descriptor descriptor;
    std::string rest;  // an incomplete line
  };
  void read(Stream& stream, void (RankProcess::*take)(const std::string&));
  void take_output(const std::string& line);
  void take_report(const std::string& line);

  const int rank_;
  bool on_terminal_ = false, lost_peer_ = false;
  pid_t pid_ = -1;
  Stream out_, err_, reports_;
  std::deque<std::string> last_lines_;
  std::string position_, folder_;
  Clock::time_point heard_ = Clock::now(), moved_ = Clock::now();
  std::optional<int> status_;
};

}  // namespace saturate
