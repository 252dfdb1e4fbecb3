#include "run/made_folder.h"

#include <exception>
#include <system_error>

namespace saturate {

MadeFolder::MadeFolder(Env& env, const std::string& path) : env_(env), lock_(path + kFolderLock) {
  for (const std::string& inner : {lock_, path + kLauncherNote, path + "/checkpoints"})
    if (!env.exists(inner)) made_.emplace_back(inner);
  for (std::filesystem::path at = path; !at.empty() && !env.exists(at); at = at.parent_path())
    made_.push_back(at);
  env.make_directories(path);
}

MadeFolder::~MadeFolder() {
  if (made_.empty()) return;
  try {
    const auto lock = env_.lock(lock_);
    std::error_code ignored;
    for (const auto& path : made_) std::filesystem::remove(path, ignored);
  } catch (const std::exception&) {
    // In use, or gone already.
  }
}

}  // namespace saturate
