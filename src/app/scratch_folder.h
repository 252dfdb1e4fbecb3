// A temporary folder for the files of measured runs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

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

// A new folder `parent`/saturate-NAME-XXXXXX, removed at the end, as is `parent` if it did not
// exist before and is empty.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = temporary_parent(),
                         const std::string& name = "bench")
      : path_(parent / ("saturate-" + name + "-XXXXXX")) {
    std::error_code error;
    made_parent_ = std::filesystem::create_directories(parent, error);
    if (error || !mkdtemp(path_.data()))
      fail(ErrorKind::kRun, "no folder can be created", path_,
           "Name a folder with space: TMPDIR, or --scratch where the command has it");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    const auto parent = std::filesystem::path(path_).parent_path();
    if (made_parent_) std::filesystem::remove(parent, ignored);  // does nothing if it is not empty
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool made_parent_ = false;
};

}  // namespace saturate
