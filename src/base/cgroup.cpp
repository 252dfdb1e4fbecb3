#include "base/cgroup.h"

#include "base/system_file.h"

namespace saturate {

std::vector<std::string> cgroup_folders(const std::string& membership, const std::string& root) {
  std::string path = system_line(membership, "0::");
  if (path.find("/..") != path.npos) path.clear();  // outside what this process can see
  while (path.ends_with('/')) path.pop_back();
  std::vector<std::string> folders;
  for (; !path.empty(); path.resize(path.rfind('/'))) folders.push_back(root + path);
  folders.push_back(root);
  return folders;
}

}  // namespace saturate
