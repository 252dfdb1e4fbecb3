// A temporary folder for the files of measured runs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "saturate/data/error.h"

namespace saturate {

// The system's folder for temporary files.
inline std::filesystem::path temporary_parent() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder;
  const char* const named = std::getenv("TMPDIR");
  fail(ErrorKind::kRun, "the folder for temporary files cannot be used: " + error.message(),
       named ? std::string("TMPDIR=") + named : "/tmp", "Set TMPDIR to a folder with space");
}

// A new folder `parent`/saturate-NAME-XXXXXX, removed at the end, as are `parent` and the folders
// above it if they did not exist before and are empty.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = temporary_parent(),
                         const std::string& name = "bench")
      : path_(parent / ("saturate-" + name + "-XXXXXX")) {
    std::error_code error;
    for (auto at = parent; !at.empty() && is_missing(at); at = at.parent_path())
      made_.push_back(at);
    std::filesystem::create_directories(parent, error);
    if (!error && mkdtemp(path_.data())) return;
    remove_made();
    fail(ErrorKind::kRun, "no folder can be created", path_,
         "Name a folder with space: TMPDIR, or --scratch where the command has it");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    remove_made();
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  // False for a dangling link, so that remove_made() does not remove it.
  static bool is_missing(const std::filesystem::path& path) {
    std::error_code ignored;
    const auto status = std::filesystem::symlink_status(path, ignored);
    return status.type() == std::filesystem::file_type::not_found;
  }
  void remove_made() {
    std::error_code ignored;  // of a folder that is not empty
    for (const auto& folder : made_) std::filesystem::remove(folder, ignored);
  }

  std::string path_;
  std::vector<std::filesystem::path> made_;  // `parent` and those above it, the innermost first
};

}  // namespace saturate
