// A run's folder, which a start that fails does not leave behind. It is removed past Env, which
// removes no empty folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// In the run's folder: what the process that it belongs to locks; a note of torchrun's process.
inline constexpr const char* kFolderLock = "/.lock";
inline constexpr const char* kLauncherNote = "/.launcher";

// A path with ".." is resolved, since a folder before ".." may be missing; others are unchanged.
std::string without_missing(const std::string& path);

class MadeFolder {
 public:
  // Makes the folder, and parents of it, where they are missing. If that fails, none is left. Fails
  // with kRun on a symbolic link that leads nowhere, also in place of `checkpoints`.
  // `made`: folders that the caller has made already, the innermost first.
  // REQUIRES: without_missing(path) == path.
  MadeFolder(Env& env, const std::string& path, std::vector<std::filesystem::path> made = {});
  // Unless kept, removes what was not there before: folders if they are empty, the lock and the
  // note. Does nothing while another process has locked the folder.
  ~MadeFolder();
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

  // The folder was not there before.
  bool is_new() const { return !folders_.empty(); }
  // The run has started.
  void keep();

 private:
  static void remove(const std::vector<std::filesystem::path>& paths);

  Env& env_;
  const std::string lock_;
  std::vector<std::filesystem::path> inner_, folders_;  // in the order of their removal
};

}  // namespace saturate
