// A large file, or a folder of files, that appears under its name only when complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// "-" and a hash of the host's name and of its PID namespace: processes of several machines and
// containers may write into one folder, and a PID names a process only within its namespace.
std::string host_ending();

// A name beside `path`, for a file or a folder that is not complete. Not for concurrent use.
class TemporaryName {
 public:
  // Removes what a killed process with the same host_ending() left under such a name, and creates
  // the parent folder if missing. Fails with kUsage if `path` exists, unless it is to be replaced.
  TemporaryName(Env& env, std::string path, bool replaces = false);
  // Removes what has the name, unless commit() has succeeded.
  ~TemporaryName();
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const std::string& get() const { return temporary_; }
  // Renames to `path`, and syncs the parent folder. Fails with kUsage if `path`, not to be
  // replaced, exists by now.
  void commit();

 private:
  Env& env_;
  const std::string path_;
  const bool replaces_;
  const std::string temporary_;
  bool committed_ = false;
};

// As write_atomically(), for data that does not fit in memory; also an object of a store, if `env`
// is a StoreEnv. Without commit() nothing remains. Not for concurrent use.
class AtomicFile {
 public:
  enum class Existing { kRefuse, kReplace };
  // Fails with kUsage if `path` exists, unless it is to be replaced.
  AtomicFile(Env& env, const std::string& path, Existing existing = Existing::kRefuse);

  void append(std::span<const std::byte> bytes);
  // Appends zeros up to a multiple of `alignment`.
  void align(uint64_t alignment);
  // Bytes appended so far.
  uint64_t size() const { return size_; }
  // Syncs the file, and does as TemporaryName::commit().
  void commit();

 private:
  void flush();

  std::optional<TemporaryName> temporary_;  // none for an object: `file_` itself is atomic
  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
};

// A folder's files are not synced one by one: a folder survives a crash of the process, and may
// lack contents after a power cut. Without commit() nothing remains. Not for concurrent use.
class AtomicFolder {
 public:
  // Fails with kUsage if `path` exists and is not an empty folder.
  AtomicFolder(Env& env, std::string path);

  // Where to write until commit(): beside `path`, or within it if it exists, as it may be a link or
  // a mounted disk.
  const std::string& temporary() const { return temporary_.get(); }
  // Renames the folder, or what is in it if `path` exists.
  void commit();

 private:
  Env& env_;
  const std::string path_;
  const bool exists_;  // before the constructor
  TemporaryName temporary_;
};

}  // namespace saturate
