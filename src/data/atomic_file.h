// A large file, or a folder of files, that appears under its name only when complete.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// "-" and a hash of the host's name and of its PID namespace: processes of several machines and
// containers may write into one folder, and a PID names a process only within its namespace.
std::string host_ending();
// Fails with kUsage if `path` exists.
void refuse_existing(Env& env, const std::string& path);
// A temporary name beside `path`. Removes what a killed process with the same host_ending() left
// under such a name, and creates the folder if missing. Fails with kUsage if `path` exists, unless
// it is to be replaced.
std::string claim_temporary(Env& env, const std::string& path, bool replace = false);

// As write_atomically(), for data that does not fit in memory; also an object of a store, if `env`
// is a StoreEnv. Not for concurrent use.
class AtomicFile {
 public:
  enum class Existing { kRefuse, kReplace };
  // Fails with kUsage if `path` exists, unless it is to be replaced.
  AtomicFile(Env& env, std::string path, Existing existing = Existing::kRefuse);
  // Removes what was written, unless commit() has succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Appends zeros up to a multiple of `alignment`.
  void align(uint64_t alignment);
  // Bytes appended so far.
  uint64_t size() const { return size_; }
  // Syncs, renames and syncs the folder. Fails with kUsage if `path`, not to be replaced, exists by
  // now.
  void commit();

 private:
  void flush();

  Env& env_;
  const std::string path_;
  const bool is_far_;  // `file_` itself is atomic
  const bool replaces_;
  const std::string temporary_;
  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  bool committed_ = false;
};

// A folder's files are not synced one by one: a folder survives a crash of the process, and may
// lack contents after a power cut. Not for concurrent use.
class AtomicFolder {
 public:
  // Fails with kUsage if `path` exists and is not an empty folder.
  AtomicFolder(Env& env, std::string path);
  // Removes what was written, unless commit() has succeeded.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where to write until commit(): beside `path`, or within it if it exists, as it may be a link or
  // a mounted disk.
  const std::string& temporary() const { return temporary_; }
  // Renames the folder, or what is in it if `path` exists.
  void commit();

 private:
  Env& env_;
  std::string path_, temporary_;
  bool exists_ = false;  // before the constructor
  bool committed_ = false;
};

}  // namespace saturate
