#include "reduce/wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace saturate {
namespace {

using Json = nlohmann::json;

constexpr size_t kLongestLine = size_t{1} << 16;

}  // namespace

void Wire::close_when_gone(int after_s) {
  constexpr int kProbes = 4;
  const int interval_s = std::max(1, after_s / (2 * kProbes));
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket_.get(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, after_s - kProbes * interval_s));
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * after_s);  // unacknowledged data
}

// Lines are few and short: if one cannot be sent at once, nobody reads.
void Wire::say(const Json& message) {
  if (!open()) return;
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const ssize_t sent = send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != ssize_t(line.size())) socket_.reset();
}

void Wire::hear(const std::function<void(const Json& message)>& take) {
  std::array<char, 4096> bytes;
  while (open() && rest_.size() <= kLongestLine) {
    const ssize_t count = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0)
      socket_.reset();
    else
      rest_.append(bytes.data(), size_t(count));
  }
  try {
    for (size_t end; (end = rest_.find('\n')) != std::string::npos;) {
      const std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      take(Json::parse(line));
    }
  } catch (const Json::exception&) {
    socket_.reset();
  }
  if (rest_.size() > kLongestLine) socket_.reset();
}

}  // namespace saturate
