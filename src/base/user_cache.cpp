#include "base/user_cache.h"

#include <cstdlib>

namespace saturate {

std::string user_cache_folder(const std::string& name) {
  const auto is_folder_path = [](const char* path) { return path && path[0] == '/'; };
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (is_folder_path(cache)) return std::string(cache) + "/saturate/" + name;
  const char* const home = std::getenv("HOME");
  return is_folder_path(home) ? std::string(home) + "/.cache/saturate/" + name : "";
}

}  // namespace saturate
