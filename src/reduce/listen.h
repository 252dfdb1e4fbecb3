// The socket on which rank 0 waits for the other ranks.
#pragma once

#include <string>

namespace saturate {

// A socket that listens at `host`:`port` only (port 0: any free one). Fails with kUsage if the host
// is not this machine or the port is taken.
int listen_at(const std::string& host, int port);
// A socket connected to `host`:`port`; -1 if no address accepts within `seconds` each.
int connect_to(const std::string& host, int port, double seconds);
// The port of a listening socket.
int port_of(int socket);
// The numeric address of this machine from which `host` is reached.
std::string address_towards(const std::string& host, int port);

}  // namespace saturate
