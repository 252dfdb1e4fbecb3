// A large file that appears under its name only when it is whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "saturate/env.h"

namespace saturate {

// A name beside `path` for what is to become `path`. Files that a killed process left under such a
// name are removed first; the folder is created where it is missing. Fails with kUsage where `path`
// exists.
std::string claim_temporary(Env& env, const std::string& path);

// Removes `temporary`, after a failure that matters more than whether this works.
void discard(Env& env, const std::string& temporary);

// As write_atomically(), for more than fits in memory. Not for concurrent use.
class AtomicFile {
 public:
  // Fails with kUsage where `path` exists.
  AtomicFile(Env& env, std::string path);
  // Removes what was written, unless commit() has succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Appends zeros up to a multiple of `alignment`.
  void align(uint64_t alignment);
  // Bytes appended so far.
  uint64_t size() const { return size_; }
  // Syncs, renames and syncs the folder.
  void commit();

 private:
  void flush();

  Env& env_;
  const std::string path_, temporary_;
  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace saturate
