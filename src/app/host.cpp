#include "app/host.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "saturate/thread_pool.h"

namespace saturate {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "n/a";
}

}  // namespace

Host this_host() {
  utsname system;
  uname(&system);
  return {cpu_name(), std::string(system.sysname) + " " + system.release + " " + system.machine,
          available_cores(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)};
}

std::string build_commit() {
  return SATURATE_COMMIT;
}

}  // namespace saturate
