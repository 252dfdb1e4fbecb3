// Shared by the real Env and its neighbours: failed calls as errors, descriptors, locks.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {

// The kind of a failed read: kRun if the machine or its storage is at fault and not the file, which
// then is not skipped as a broken sample, and which a restart may read.
ErrorKind kind_of_failed_read(int error);

// Fails with "cannot ACTION: REASON" and the remedy for that reason.
[[noreturn]] void fail_system(ErrorKind kind, const std::string& action, const std::string& path,
                              int error = errno);

// Env::lock() of the real Env.
std::unique_ptr<FileLock> lock_file(const std::string& path);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace saturate
