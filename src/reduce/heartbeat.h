// What a process of a run tells the launcher that started it, over a socket that it inherits:
// where it is, once a second, from a thread of its own, so that a launcher can tell a process
// that waits from one that is gone; and the run's folder, for a restart.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace saturate {

// The variable that names the socket.
inline constexpr const char* kReportVariable = "SATURATE_REPORT_FD";
inline constexpr const char* kFolderLine = "folder ";
inline constexpr const char* kPlaceLine = "at ";

class Heartbeat {
 public:
  virtual ~Heartbeat() = default;
};

// Null where there is no launcher. `place` is called on the other thread while the heartbeat lives.
std::unique_ptr<Heartbeat> start_heartbeat(std::function<std::string()> place);

// Tells the launcher, if there is one.
void report_folder(const std::string& folder);

}  // namespace saturate
