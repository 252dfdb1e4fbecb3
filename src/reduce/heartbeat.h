// Reports from a process of a run to the launcher that started it, over an inherited socket: its
// position once a second, from a separate thread, so that a launcher can tell a waiting process
// from a dead one; and the run's folder, for a restart.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace saturate {

// The environment variable that holds the socket.
inline constexpr const char* kReportVariable = "SATURATE_REPORT_FD";
inline constexpr const char* kFolderLine = "folder ";
inline constexpr const char* kPlaceLine = "at ";

class Heartbeat {
 public:
  virtual ~Heartbeat() = default;
};

// Null without a launcher. `place` is called on the other thread while the heartbeat lives.
std::unique_ptr<Heartbeat> start_heartbeat(std::function<std::string()> place);

// Reports to the launcher, if there is one.
void report_folder(const std::string& folder);

}  // namespace saturate
