// Marks that tell a launcher that a process is waiting for others, so that it is not blamed.
#pragma once

namespace saturate {

// While one lives, this process waits for others, whatever its current phase.
class WaitingForOthers {
 public:
  WaitingForOthers();
  ~WaitingForOthers();
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;
};
bool waits_for_others();

// Reports that this process ends because another has ended.
void report_lost_peer();

// Suffix of a reported position, and a separate report line.
inline constexpr const char* kWaitingMark = ", waiting for other ranks";
inline constexpr const char* kLostLine = "lost a peer";

}  // namespace saturate
