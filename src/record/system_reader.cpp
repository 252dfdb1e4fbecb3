#include "record/system_reader.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace saturate {
namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  std::ifstream file(path);
  if (file) text << file.rdbuf();
  return text.str();
}

}  // namespace

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

std::optional<StorageBytes> parse_proc_io(const std::string& text) {
  std::istringstream lines(text);
  std::optional<int64_t> read, written;
  std::string name;
  for (int64_t value; lines >> name >> value;) {
    if (name == "read_bytes:") read = value;
    if (name == "write_bytes:") written = value;
  }
  if (!read || !written) return std::nullopt;
  return StorageBytes{*read, *written};
}

std::optional<NetworkBytes> parse_net_dev(const std::string& text) {
  std::istringstream lines(text);
  std::optional<NetworkBytes> sum;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;  // the two header lines
    std::string name;
    std::istringstream(line.substr(0, colon)) >> name;
    // received bytes, seven other receive counters, sent bytes
    std::istringstream fields(line.substr(colon + 1));
    int64_t received = 0, sent = 0, other = 0;
    fields >> received;
    for (int i = 0; i < 7; ++i) fields >> other;
    if (!(fields >> sent) || name == "lo") continue;
    if (!sum) sum.emplace();
    sum->received += received;
    sum->sent += sent;
  }
  return sum;
}

std::optional<int64_t> parse_statm(const std::string& text, int64_t page_bytes) {
  int64_t size = 0, resident = 0;
  if (!(std::istringstream(text) >> size >> resident)) return std::nullopt;
  return resident * page_bytes;
}

SystemReader::SystemReader(Env& env, std::string proc)
    : env_(env), proc_(std::move(proc)), last_(count()) {}

SystemReader::Counters SystemReader::count() const {
  return {env_.now_ns(), cpu_seconds(), parse_proc_io(text_of(proc_ + "/self/io")),
          parse_net_dev(text_of(proc_ + "/net/dev"))};
}

Telemetry SystemReader::read() {
  const Counters now = count();
  const Counters before = std::exchange(last_, now);
  Telemetry reading;
  if (const auto bytes = parse_statm(text_of(proc_ + "/self/statm"), sysconf(_SC_PAGESIZE)))
    reading.rss_bytes = double(*bytes);
  const double seconds = double(now.time_ns - before.time_ns) * 1e-9;
  if (seconds <= 0) return reading;
  reading.cores = (now.cpu_s - before.cpu_s) / seconds;
  if (now.storage && before.storage) {
    reading.disk_read_per_s = double(now.storage->read - before.storage->read) / seconds;
    reading.disk_write_per_s = double(now.storage->written - before.storage->written) / seconds;
  }
  if (now.network && before.network) {
    reading.net_receive_per_s = double(now.network->received - before.network->received) / seconds;
    reading.net_send_per_s = double(now.network->sent - before.network->sent) / seconds;
  }
  return reading;
}

}  // namespace saturate
