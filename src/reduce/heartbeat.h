// Reports from a process of a run to the launcher that started it, over an inherited socket: its
// position once a second, from a separate thread, so that a launcher can tell a waiting process
// from a dead one; and the run's folder, for a restart.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace saturate {

// The environment variable that holds the socket.
inline constexpr const char* kReportVariable = "SATURATE_REPORT_FD";
inline constexpr const char* kFolderLine = "folder ";
inline constexpr const char* kPositionLine = "at ";

class Heartbeat {
 public:
  explicit Heartbeat(std::function<std::string()> position);

 private:
  std::jthread thread_;
};

// Null without a launcher. `position` is called on the other thread while the heartbeat lives.
std::unique_ptr<Heartbeat> start_heartbeat(std::function<std::string()> position);

// Reports to the launcher, if there is one.
void report_folder(const std::string& folder);

// While one lives, this process waits for others, whatever its current phase.
class WaitingForOthers {
 public:
  WaitingForOthers() { ++count; }
  ~WaitingForOthers() { --count; }
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;

  inline static std::atomic<int> count{0};
};
inline bool waits_for_others() {
  return WaitingForOthers::count > 0;
}

// Reports that this process ends because another has ended.
void report_lost_peer();

// Suffix of a reported position, and a separate report line.
inline constexpr const char* kWaitingMark = ", waiting for other ranks";
inline constexpr const char* kLostLine = "lost a peer";

}  // namespace saturate
