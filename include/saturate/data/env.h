// SPDX-License-Identifier: BSD-3-Clause
// Env is the only access to files and clocks, so that a test can fail, shorten or delay any access.
//
// Every method is safe to call from any thread. Failures throw saturate::Error naming the path and
// the system's reason: of kind kData when reading, unless the machine or its storage is at fault
// (too many open files, a network file system that is away), and of kRun otherwise. No method
// returns a partial result silently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace saturate {

// Expected use of a part of a file: read soon, later, or not again; or it was found damaged.
struct ReadAdvice {
  // kLater is for storage that is far away: such a part is fetched after all that kSoon announces,
  // with at most half of look_ahead(). kSoon for the same part moves it to those.
  // kToDisk: the part is fetched only into the storage's cache on disk, after all that kSoon and
  // kLater announce, if the cache has room. kSoon or kLater for the same part replaces it.
  // kDamaged: storage that is far away drops its copies of that part, which was read as a whole, so
  // that the next read fetches it again; the copies of a file's first 512 bytes stay.
  enum Kind { kSoon, kLater, kToDisk, kNotAgain, kDamaged };
  static constexpr uint64_t kUnknown = UINT64_MAX;

  constexpr ReadAdvice(Kind k, uint64_t use = kUnknown) : kind(k), next_use(use) {}
  constexpr operator Kind() const { return kind; }

  Kind kind;
  uint64_t next_use;  // the epoch in which this machine reads it again after that
};

// Bytes [offset, offset + length) of a file.
struct ByteRange {
  uint64_t offset = 0, length = 0;
};

// A file opened for positioned reads. Safe for concurrent use: reads share no cursor.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Bytes in the file when it was opened.
  virtual uint64_t size() const = 0;
  // Fills `out` from `offset` completely, or throws: reading past the end is an error.
  virtual void read_at(uint64_t offset, std::span<std::byte> out) const = 0;
  // A hint, which may do nothing: the system reads ahead, or drops cached pages that nothing else
  // uses.
  virtual void advise(ReadAdvice, uint64_t /*offset*/, uint64_t /*length*/) const {}
  // Number of bytes that the caller should announce before reading them, by advise(kSoon), range by
  // range in the order of use; above 0 for remote storage, else 0. kNotAgain withdraws announced
  // ranges that begin in the given one.
  virtual uint64_t look_ahead() const { return 0; }
  // advise() with kSoon or kLater for a range whose bytes determine the range that is read next:
  // `next` returns that range, or an empty one. It is called at most once, on any thread, and must
  // neither throw, nor wait, nor use the file.
  using NextRange = std::function<ByteRange(std::span<const std::byte>)>;
  virtual void advise_next(ReadAdvice, uint64_t /*offset*/, uint64_t /*length*/,
                           const NextRange&) const {}
  // Cost of one more request, as the bytes received in the time that it takes: reading two ranges
  // instead of one pays if it saves more. UINT64_MAX: it never pays, or nothing is known yet.
  virtual uint64_t request_bytes() const { return UINT64_MAX; }
};

// A file being written from its start. Not for concurrent use. Destroying it without close() keeps
// what was written; for all-or-nothing use write_atomically().
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  // A hint before the first append, which may do nothing: later data bypasses the page cache, so
  // that a large file that is not read soon costs no copy and evicts nothing else.
  virtual void bypass_cache() {}
  // Returns once the data has reached the device (fsync).
  virtual void sync() = 0;
  virtual void close() = 0;
};

// Held until destroyed, or until the process ends for any reason.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

struct FileInfo {
  std::string name;  // without the folder
  bool is_directory;
};

class Env {
 public:
  virtual ~Env() = default;

  virtual std::unique_ptr<ReadableFile> open_readable(const std::string& path) = 0;
  // Reads the whole file into `out`, whose memory is reused. The default uses open_readable().
  virtual void read_into(const std::string& path, std::vector<std::byte>& out);
  // Creates or truncates.
  virtual std::unique_ptr<WritableFile> open_writable(const std::string& path) = 0;
  // Creates, or continues at a file's end, or where an own descriptor (/dev/stdout, /dev/fd/N) is.
  virtual std::unique_ptr<WritableFile> open_appendable(const std::string& path) = 0;

  // Fail with kRun if the storage cannot tell; a path that may not be looked up counts as missing.
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  // Entries sorted by name, bytewise, without "." and "..". Symbolic links are followed.
  virtual std::vector<FileInfo> list(const std::string& path) = 0;
  // Creates missing parents; an existing folder is not an error.
  virtual void make_directories(const std::string& path) = 0;
  // Atomic replacement within one file system.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Removes one file; a missing file is not an error.
  virtual void remove(const std::string& path) = 0;
  // Removes a folder and everything in it, without following links; a missing one is not an error.
  virtual void remove_tree(const std::string& path) = 0;
  // Free bytes of this folder's file system; the default returns the maximum.
  virtual uint64_t free_bytes(const std::string& /*folder*/) { return UINT64_MAX; }
  // Makes a completed rename in this folder durable.
  virtual void sync_directory(const std::string& path) = 0;

  // Locks a file, created if missing, against every other lock of it. Only its owner may remove it.
  // Fails at once with kUsage, naming the process, if it is already locked.
  virtual std::unique_ptr<FileLock> lock(const std::string& path) = 0;

  // Monotonic, nanoseconds from an arbitrary start.
  virtual int64_t now_ns() = 0;
  virtual void sleep_ns(int64_t duration) = 0;

  // The real Env; lives for the whole process.
  static Env& posix();
};

// Reads the whole file.
std::vector<std::byte> read_file(Env& env, const std::string& path);

// Syncs a sibling temporary file, renames it over `path` and syncs the folder: after a crash `path`
// holds its old contents or all of the new ones. On failure the temporary file is removed. Links
// stay links; devices, pipes, sockets and /dev/stdout are written to in place.
void write_atomically(Env& env, const std::string& path,
                      std::span<const std::span<const std::byte>> pieces);
void write_atomically(Env& env, const std::string& path, const std::string& text);

// Cores this process may use: the affinity mask, limited by a cgroup quota if there is one. At
// least 1.
int available_cores();

// An object of a store that a source was opened from, as it was then; or a folder of a bucket.
struct ObjectVersion {
  std::string name;    // for messages: without a query
  std::string digest;  // of the size and ETag (else date): another one if it was replaced
};

}  // namespace saturate
