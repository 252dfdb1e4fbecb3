// Messages between a measuring process and its parent, over a socket:
//
//   parent: {"measure": seconds}     process: {"ready": true}, once; then, for each measurement, a
//                                             RungTiming or, as its last one, {"error", "kind",
//                                             ...}
#pragma once

#include <poll.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "advise/ladder.h"
#include "reduce/sockets.h"

namespace saturate {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseTimes, seconds, network_wait)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepTiming, steps, samples, wall_s, cpu_s, phases)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RungTiming, steps, memory_peak_bytes, tensor_peak_bytes, unit)

inline nlohmann::json to_json(const Error& error) {
  return {{"error", error.reason()},
          {"kind", int(error.kind())},
          {"where", error.where()},
          {"remedy", error.remedy()}};
}
[[noreturn]] inline void throw_from_json(const nlohmann::json& json) {
  fail(ErrorKind(json.at("kind").get<int>()), json.at("error"), json.at("where"),
       json.at("remedy"));
}

// The last message that has come; earlier ones are dropped, since an error replaces an answer.
// Waits for one at most so many milliseconds (-1: without a limit), or until a signal. Empty if
// none has come, or the other end is closed.
inline std::optional<nlohmann::json> next_message(Wire& wire, int milliseconds) {
  pollfd waited{wire.descriptor(), POLLIN, 0};
  poll(&waited, 1, milliseconds);
  std::optional<nlohmann::json> found;
  wire.hear([&](const nlohmann::json& message) { found = message; });
  return found;
}

}  // namespace saturate
