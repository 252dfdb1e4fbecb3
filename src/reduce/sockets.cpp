#include "reduce/sockets.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "saturate/data/error.h"

namespace saturate {
namespace {

using Json = nlohmann::json;

constexpr int kBacklog = 1024;
constexpr size_t kLongestLine = size_t{1} << 16;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int type) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    fail(ErrorKind::kUsage,
         fmt::format("cannot resolve host \"{}\": {}", host, gai_strerror(error)),
         "MASTER_ADDR, or --master", "Give the name or address of rank 0's machine");
  return {found, &freeaddrinfo};
}

// A socket for the first of the host's addresses with which use(socket, address) succeeds; -1 if
// there is none. `type`: SOCK_STREAM or SOCK_DGRAM, and flags.
template <class Use>
int first_socket(const std::string& host, int port, int type, const Use& use) {
  const Addresses addresses = resolve(host, port, type & ~SOCK_NONBLOCK);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int descriptor = socket(at->ai_family, type | SOCK_CLOEXEC, at->ai_protocol);
    if (descriptor >= 0 && use(descriptor, *at)) return descriptor;
    if (descriptor >= 0) close(descriptor);
  }
  return -1;
}

// An address in digits; "" if that fails.
std::string address_text(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

bool spans_machines(const World& world) {
  if (world.local_size == 0) return world.master != "localhost";
  return world.local_size < world.size;
}

void Descriptor::reset() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

int listen_at(const std::string& host, int port, bool for_machines) {
  int error = 0;
  std::string loopback;
  const int found =
      first_socket(host, port, SOCK_STREAM, [&](int descriptor, const addrinfo& address) {
        const std::string text = address_text(address.ai_addr, address.ai_addrlen);
        if (for_machines && is_loopback(text) && text != host) {
          loopback = text;
          return false;
        }
        const int yes = 1;
        setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        const bool listens = bind(descriptor, address.ai_addr, address.ai_addrlen) == 0 &&
                             listen(descriptor, kBacklog) == 0;
        error = errno;
        return listens;
      });
  if (found >= 0) return found;
  if (error == 0 && !loopback.empty())
    fail(
        ErrorKind::kUsage,
        fmt::format("other machines cannot reach \"{}\", which is {} on this machine", host,
                    loopback),
        "MASTER_ADDR, or --master",
        "Give this machine's address in the network, in digits, or correct its line in /etc/hosts");
  const char* const remedy = error == EADDRINUSE
                                 ? "Choose another port, or end the run that uses it"
                                 : "Start rank 0 on that machine, or give this one's address";
  fail(ErrorKind::kUsage,
       fmt::format("cannot listen at {}:{}: {}", host, port, std::strerror(error)),
       "MASTER_ADDR and MASTER_PORT, or --master", remedy);
}

int connect_to(const std::string& host, int port, double seconds) {
  const auto connects = [&](int descriptor, const addrinfo& address) {
    int error = connect(descriptor, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
    pollfd polled{descriptor, POLLOUT, 0};
    if (error == EINPROGRESS && poll(&polled, 1, int(seconds * 1e3)) == 1) {
      socklen_t size = sizeof error;
      getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    return error == 0;
  };
  return first_socket(host, port, SOCK_STREAM | SOCK_NONBLOCK, connects);
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string address_towards(const std::string& host, int port, bool for_machines) {
  std::string found;
  const auto find_own = [&](int descriptor, const addrinfo& address) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    // Sends nothing: connecting a datagram socket only selects the route.
    if (connect(descriptor, address.ai_addr, address.ai_addrlen) != 0 ||
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) != 0)
      return false;
    found = address_text(reinterpret_cast<const sockaddr*>(&own), size);
    return !found.empty() && !(for_machines && is_loopback(found));
  };
  const Descriptor used(first_socket(host, port, SOCK_DGRAM, find_own));
  if (!found.empty()) return found;
  fail(ErrorKind::kRun, "this machine has no route to " + host, "MASTER_ADDR, or --master",
       "Check the address, and the network between the machines");
}

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
  // hear() takes the last messages of an end that has closed, and then closes this one.
  const bool is_closed = sent < 0 && errno == EPIPE;
  if (sent != ssize_t(line.size()) && !is_closed) socket_.reset();
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
