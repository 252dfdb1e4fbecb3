#include "advise/rung_wire.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace saturate {

using nlohmann::json;

json to_json(const RungTiming& timing) {
  const StepTiming& steps = timing.steps;
  return {{"steps", steps.steps},
          {"samples", steps.samples},
          {"wall_s", steps.wall_s},
          {"cpu_s", steps.cpu_s},
          {"phases", steps.phases.seconds},
          {"memory_peak_bytes", timing.memory_peak_bytes},
          {"tensor_peak_bytes", timing.tensor_peak_bytes}};
}

RungTiming timing_from_json(const json& line) {
  RungTiming timing;
  timing.steps.steps = line.at("steps");
  timing.steps.samples = line.at("samples");
  timing.steps.wall_s = line.at("wall_s");
  timing.steps.cpu_s = line.at("cpu_s");
  timing.steps.phases.seconds = line.at("phases");
  timing.memory_peak_bytes = line.at("memory_peak_bytes");
  timing.tensor_peak_bytes = line.at("tensor_peak_bytes");
  return timing;
}

json to_json(const Error& error) {
  return {{"error", error.reason()},
          {"kind", int(error.kind())},
          {"where", error.where()},
          {"remedy", error.remedy()}};
}

void throw_from_json(const json& line) {
  fail(ErrorKind(line.at("kind").get<int>()), line.at("error"), line.at("where"),
       line.at("remedy"));
}

std::optional<std::string> LineReader::next(int milliseconds) {
  while (true) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (ended_) return std::nullopt;
    pollfd waited{fd_, POLLIN, 0};
    const int ready = poll(&waited, 1, milliseconds);
    // A signal ends this wait, and read() would begin another without an end.
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
      if (milliseconds >= 0) return std::nullopt;
      continue;
    }
    char part[4096];
    const ssize_t count = read(fd_, part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    ended_ = count <= 0;
    if (count > 0) unread_.append(part, size_t(count));
  }
}

bool write_line(int fd, const json& line) {
  // Messages may hold names of files, which need not be UTF-8.
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    written += size_t(count);
  }
  return true;
}

}  // namespace saturate
