#include "base/cgroup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "base/system_file.h"

namespace saturate {
namespace {

// From a line such as "4:cpu,cpuacct:/slurm/job_1". Version 2 has no controllers there: "".
std::string path_of_group(const std::string& membership, const std::string& controller) {
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find(':') + 1, end = line.find(':', begin);
    if (end == std::string::npos) continue;
    const std::string controllers = "," + line.substr(begin, end - begin) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos) return line.substr(end + 1);
  }
  return "";
}

// The folders with the files of either version. Version 1 has a tree for each controller.
std::vector<std::string> folders_of_groups(const std::string& membership, const std::string& root,
                                           const std::string& controller) {
  std::vector<std::string> folders;
  for (const std::string& name : {std::string(), controller}) {
    std::string path = path_of_group(membership, name);
    if (path.find("/..") != path.npos) path.clear();  // outside what this process can see
    while (path.ends_with('/')) path.pop_back();
    const std::string top = name.empty() ? root : root + "/" + name;
    for (; !path.empty(); path.resize(path.rfind('/'))) folders.push_back(top + path);
    folders.push_back(top);  // in a container with version 1, the path is the host's
  }
  return folders;
}

uint64_t either_number(const std::string& path, const std::string& other) {
  return std::max(system_number(path), system_number(other));
}

}  // namespace

CgroupMemory cgroup_memory(const std::string& membership, const std::string& root) {
  CgroupMemory least;
  for (const std::string& folder : folders_of_groups(membership, root, "memory")) {
    const uint64_t limit = either_number(folder + "/memory.max", folder + "/memory.limit_in_bytes");
    if (limit == 0) continue;
    // Usage includes the page cache, of which the system drops inactive files first.
    const uint64_t used =
        either_number(folder + "/memory.current", folder + "/memory.usage_in_bytes");
    const std::string stat = folder + "/memory.stat";
    const uint64_t files = std::max(system_number(stat, "inactive_file "),
                                    system_number(stat, "total_inactive_file "));  // version 1
    const uint64_t taken = used - std::min(used, files);
    least.limit = std::min(least.limit, limit);
    least.left = std::min(least.left, limit > taken ? limit - taken : 0);
  }
  return least;
}

int cgroup_cores(const std::string& membership, const std::string& root) {
  int least = 0;
  for (const std::string& folder : folders_of_groups(membership, root, "cpu")) {
    double quota = 0, period = 0;  // microseconds
    std::ifstream file(folder + "/cpu.max");
    if (!(file >> quota >> period)) {  // it begins with "max", or this is version 1
      std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: none
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    if (quota <= 0 || period <= 0) continue;
    const int cores = std::max(1, int(std::ceil(quota / period)));
    least = least == 0 ? cores : std::min(least, cores);
  }
  return least;
}

}  // namespace saturate
