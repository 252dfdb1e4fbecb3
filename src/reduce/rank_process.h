// One process that a launcher starts, and what comes from it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate {

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const { return descriptor_; }
  void reset();

 private:
  int descriptor_ = -1;
};

struct RankCommand {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> variables;
  int listening = -1;  // a socket that it inherits as SATURATE_LISTEN_FD, if any
};

// Killed by the system when the launcher ends, however that ends; in a process group of its own, so
// that a terminal's Ctrl-C comes to the launcher alone.
class RankProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `rank` 0 has the launcher's standard output, and its standard error where that is a terminal.
  RankProcess(int rank, const RankCommand& command);
  // Kills it, if it still runs.
  ~RankProcess();
  RankProcess(RankProcess&&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Descriptors to poll for reading.
  std::vector<int> descriptors() const;
  // Takes what has come: prints its lines with the rank in front, notes its place.
  void read_all();
  // Whether it has ended, without waiting. What it wrote last has then been read.
  bool ended();
  // 128 + N where signal N ended it. REQUIRES: ended().
  int exit_code() const;
  bool killed() const;
  void signal(int number) const;

  // Of what it printed; none of what it shows on a terminal itself.
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  bool on_terminal() const { return on_terminal_; }
  const std::string& place() const { return place_; }    // "step 3, in forward"; "" so far
  const std::string& folder() const { return folder_; }  // the run's, as rank 0 says
  bool lost_peer() const { return lost_peer_; }          // it says that another was gone
  Clock::time_point heard() const { return heard_; }     // last
  Clock::time_point moved() const { return moved_; }     // when its place last changed

 private:
  struct Stream {
    Descriptor descriptor;
    std::string rest;  // a line that has not ended
  };
  void read(Stream& stream, void (RankProcess::*take)(const std::string&));
  void take_output(const std::string& line);
  void take_report(const std::string& line);

  const int rank_;
  bool on_terminal_ = false, lost_peer_ = false;
  pid_t pid_ = -1;
  Stream out_, err_, reports_;
  std::deque<std::string> last_lines_;
  std::string place_, folder_;
  Clock::time_point heard_ = Clock::now(), moved_ = Clock::now();
  std::optional<int> status_;
};

}  // namespace saturate
