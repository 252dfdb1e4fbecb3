// The socket that rank 0 waits for the others on.
#pragma once

#include <string>

namespace saturate {

// A socket that listens at `host`:`port` alone (port 0: any that is free). Fails with kUsage where
// the host is not this machine or the port is taken.
int listen_at(const std::string& host, int port);
// A socket connected to `host`:`port`; -1 where nobody accepts within `seconds` (of each address).
int connect_to(const std::string& host, int port, double seconds);
// The port that a listening socket has.
int port_of(int socket);
// The numeric address of this machine from which `host` is reached.
std::string address_towards(const std::string& host, int port);

}  // namespace saturate
