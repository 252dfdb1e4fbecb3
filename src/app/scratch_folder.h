#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "saturate/error.h"

namespace saturate {

// A folder of its own under the system's temporary one, gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / "saturate-bench-XXXXXX") {
    if (!mkdtemp(path_.data()))
      fail(ErrorKind::kRun, "no folder can be created", path_, "Set TMPDIR to a folder with space");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace saturate
