#include "reduce/listen.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kBacklog = 1024;

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

}  // namespace

int listen_at(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port, SOCK_STREAM);
  int error = 0;
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int descriptor = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (descriptor < 0) continue;
    const int yes = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(descriptor, at->ai_addr, at->ai_addrlen) == 0 && listen(descriptor, kBacklog) == 0)
      return descriptor;
    error = errno;
    close(descriptor);
  }
  const char* const remedy = error == EADDRINUSE
                                 ? "Choose another port, or end the run that uses it"
                                 : "Start rank 0 on that machine, or give this one's address";
  fail(ErrorKind::kUsage,
       fmt::format("cannot listen at {}:{}: {}", host, port, std::strerror(error)),
       "MASTER_ADDR and MASTER_PORT, or --master", remedy);
}

int connect_to(const std::string& host, int port, double seconds) {
  const Addresses addresses = resolve(host, port, SOCK_STREAM);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int type = at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
    const int descriptor = socket(at->ai_family, type, at->ai_protocol);
    if (descriptor < 0) continue;
    int error = connect(descriptor, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    pollfd polled{descriptor, POLLOUT, 0};
    if (error == EINPROGRESS && poll(&polled, 1, int(seconds * 1e3)) == 1) {
      socklen_t size = sizeof error;
      getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return descriptor;
    close(descriptor);
  }
  return -1;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string address_towards(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port, SOCK_DGRAM);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int descriptor = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char text[NI_MAXHOST];
    // Sends nothing: connecting a datagram socket only selects the route.
    const bool found = connect(descriptor, at->ai_addr, at->ai_addrlen) == 0 &&
                       getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                       getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof text,
                                   nullptr, 0, NI_NUMERICHOST) == 0;
    close(descriptor);
    if (found) return text;
  }
  fail(ErrorKind::kRun, "this machine has no route to " + host, "MASTER_ADDR, or --master",
       "Check the address, and the network between the machines");
}

}  // namespace saturate
