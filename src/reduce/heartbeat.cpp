#include "reduce/heartbeat.h"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <utility>

namespace saturate {
namespace {

constexpr std::chrono::seconds kInterval{1};

std::atomic<int> waiting_now{0};

// Never blocks: a line is dropped if the launcher does not read.
void tell(const std::string& line) {
  const char* const given = std::getenv(kReportVariable);
  if (!given) return;
  const std::string text = line + "\n";
  if (send(std::atoi(given), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

}  // namespace

Heartbeat::Heartbeat(std::function<std::string()> position)
    : position_(std::move(position)), thread_([this] { run(); }) {}

Heartbeat::~Heartbeat() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  thread_.join();
}

void Heartbeat::run() {
  MutexLock lock(mutex_);
  do {
    try {
      tell(kPositionLine + position_() + (waits_for_others() ? kWaitingMark : ""));
    } catch (const std::bad_alloc&) {  // skip one heartbeat
    }
    const auto next = std::chrono::steady_clock::now() + kInterval;
    while (!ending_ && end_.wait_until(lock, next)) {
    }
  } while (!ending_);
}

std::unique_ptr<Heartbeat> start_heartbeat(std::function<std::string()> position) {
  if (!std::getenv(kReportVariable)) return nullptr;
  return std::make_unique<Heartbeat>(std::move(position));
}

WaitingForOthers::WaitingForOthers() {
  ++waiting_now;
}

WaitingForOthers::~WaitingForOthers() {
  --waiting_now;
}

bool waits_for_others() {
  return waiting_now > 0;
}

void report_lost_peer() {
  tell(kLostLine);
}

void report_folder(const std::string& folder) {
  tell(kFolderLine + folder);
}

}  // namespace saturate
