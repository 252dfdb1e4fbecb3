// Sockets between the processes and the launchers of a run.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "saturate/data/world.h"

namespace saturate {

// A file descriptor that its owner closes.
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

// Whether ranks of other machines connect to rank 0; if the local size is not known, whether the
// master is not "localhost".
bool spans_machines(const World& world);
// A socket that listens at `host`:`port` only (port 0: any free one). Fails with kUsage if the host
// is not this machine or the port is taken. `for_machines`: others connect to it, so if the host is
// a name, not at its loopback addresses; fails with kUsage if it has only those.
int listen_at(const std::string& host, int port, bool for_machines = false);
// A socket connected to `host`:`port`; -1 if no address accepts within `seconds` each.
int connect_to(const std::string& host, int port, double seconds);
// The port of a listening socket.
int port_of(int socket);
// The numeric address of this machine from which `host` is reached. `for_machines`: if possible not
// a loopback address, since other machines are told it.
std::string address_towards(const std::string& host, int port, bool for_machines = false);

// A connection between the launchers of two machines, which exchange lines of JSON.
class Wire {
 public:
  Wire() = default;
  // Takes ownership of a connected socket.
  explicit Wire(int socket) : socket_(socket) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return socket_.get() >= 0; }
  // Has the system close it this many seconds after the other machine or the route to it is lost. A
  // launcher that is only busy is not lost: its system still acknowledges.
  void close_when_gone(int after_s);
  void say(const nlohmann::json& message);
  // Calls take(message) for each pending message, without waiting. Closes if the other end has
  // closed or is not a launcher: take() may throw json's exceptions for missing members.
  void hear(const std::function<void(const nlohmann::json& message)>& take);

 private:
  Descriptor socket_;
  std::string rest_;  // an incomplete line
};

}  // namespace saturate
