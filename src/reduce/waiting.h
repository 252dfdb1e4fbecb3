// What a launcher hears of a process that others hold up, so that it does not blame that one.
#pragma once

namespace saturate {

// While one lives, this process waits for others, whatever the phase it is in.
class WaitingForOthers {
 public:
  WaitingForOthers();
  ~WaitingForOthers();
  WaitingForOthers(const WaitingForOthers&) = delete;
  WaitingForOthers& operator=(const WaitingForOthers&) = delete;
};
bool waits_for_others();

// That this process ends since another is gone.
void report_lost_peer();

// At the end of a place, and as a line.
inline constexpr const char* kWaitingMark = ", waiting for other ranks";
inline constexpr const char* kLostLine = "lost a peer";

}  // namespace saturate
