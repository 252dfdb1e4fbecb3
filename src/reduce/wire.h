// A connection between the launchers of two machines, over which they tell each other lines of
// JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "reduce/rank_process.h"

namespace saturate {

class Wire {
 public:
  Wire() = default;
  // Takes a connected socket.
  explicit Wire(int socket) : socket_(socket) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return socket_.get() >= 0; }
  // Has the system close it so many seconds after the other machine, or the way there, is gone. A
  // launcher that only has no time is not gone: its system answers for it.
  void close_when_gone(int after_s);
  void say(const nlohmann::json& message);
  // Calls take(message) with all that has come, without waiting, and closes where the other end has
  // closed, or is no launcher: take() may throw what a message that lacks something makes json
  // throw.
  void hear(const std::function<void(const nlohmann::json& message)>& take);

 private:
  Descriptor socket_;
  std::string rest_;  // a line that has not ended
};

}  // namespace saturate
