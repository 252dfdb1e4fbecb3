// A run's folder, which a start that fails does not leave behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// In the run's folder: locked by the process that it belongs to; names torchrun's process.
inline constexpr const char* kFolderLock = "/.lock";
inline constexpr const char* kLauncherNote = "/.launcher";

class MadeFolder {
 public:
  // Makes the folder, and parents of it, where they are missing.
  MadeFolder(Env& env, const std::string& path);
  // Unless kept, removes what was not there before: folders if they are empty, the lock and the
  // note. Does nothing while the folder is another process's.
  ~MadeFolder();
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

  // The run has started.
  void keep() { made_.clear(); }

 private:
  Env& env_;
  const std::string lock_;
  std::vector<std::filesystem::path> made_;  // in the order of their removal
};

}  // namespace saturate
