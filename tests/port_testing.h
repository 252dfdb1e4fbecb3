// Ports of loopback.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace saturate::testing {

inline sockaddr_in address_of(in_addr host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr = host;
  address.sin_port = htons(uint16_t(port));
  return address;
}

inline in_addr loopback() {
  return in_addr{htonl(INADDR_LOOPBACK)};
}

// A port that this listens at while it exists.
class TakenPort {
 public:
  TakenPort() {
    sockaddr_in address = address_of(loopback(), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    number_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(socket_); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  int number() const { return number_; }
  int listener() const { return socket_; }

 private:
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  int number_ = 0;
};

inline int free_port() {
  return TakenPort().number();
}

}  // namespace saturate::testing
