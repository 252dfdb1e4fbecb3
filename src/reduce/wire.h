// A connection between the launchers of two machines, which exchange lines of JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "reduce/rank_process.h"

namespace saturate {

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
