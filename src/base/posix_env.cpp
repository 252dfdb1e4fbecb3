// Env over POSIX system calls.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/files.h"
#include "base/system_call.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

std::string remedy_for(int error) {
  switch (error) {
    case ENOENT:
      return "Check the path";
    case EACCES:
    case EPERM:
      return "Check its permissions";
    case ENOSPC:
    case EDQUOT:
      return "Free some space there, or choose a folder on another disk";
    case EMFILE:
      return "Raise the limit of open files (ulimit -n)";
    case EROFS:
      return "Choose a folder that can be written";
    default:
      return "Check the file system";
  }
}

[[noreturn]] void fail_reading(const std::string& action, const std::string& path) {
  const int error = errno;
  fail_system(kind_of_failed_read(error), action, path, error);
}

// False after a call that found no such file; fails if the call could not look.
bool not_there(const std::string& path) {
  constexpr int kAbsent[] = {ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EACCES, EPERM, EINVAL, EILSEQ};
  if (std::ranges::count(kAbsent, errno) == 0) fail_system(ErrorKind::kRun, "examine", path);
  return false;
}

void read_fully(int fd, uint64_t offset, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_reading("read", path);
    if (got == 0)
      fail(ErrorKind::kData, "file ends before byte " + std::to_string(offset + out.size()), path,
           "It is truncated or was changed while in use: fetch it again");
    offset += uint64_t(got);
    out = out.subspan(size_t(got));
  }
}

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(int fd, uint64_t size, std::string path)
      : fd_(fd), size_(size), path_(std::move(path)) {}
  uint64_t size() const override { return size_; }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    read_fully(fd_.get(), offset, out, path_);
  }
  void advise(ReadAdvice advice, uint64_t offset, uint64_t length) const override {
    if (advice != ReadAdvice::kSoon && advice != ReadAdvice::kNotAgain) return;
    ::posix_fadvise(fd_.get(), off_t(offset), off_t(length),
                    advice == ReadAdvice::kSoon ? POSIX_FADV_WILLNEED : POSIX_FADV_DONTNEED);
  }

 private:
  FileDescriptor fd_;
  uint64_t size_;
  std::string path_;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  void append(std::span<const std::byte> bytes) override {
    if (!staged_) return write_fully(bytes);
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), kStaged - filled_));
      std::memcpy(staged_.get() + filled_, part.data(), part.size());
      filled_ += part.size();
      bytes = bytes.subspan(part.size());
      if (filled_ == kStaged) write_staged();
    }
  }
  // Direct writes need aligned memory, sizes and offsets: full blocks are written directly, and the
  // remainder at the end through the cache.
  void bypass_cache() override {
    staged_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kStaged)));
  }
  void sync() override {
    write_staged();
    if (::fsync(fd_.get()) != 0) fail_system(ErrorKind::kRun, "sync", path_);
  }
  void close() override {
    write_staged();
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0) fail_system(ErrorKind::kRun, "close", path_);
  }

 private:
  static constexpr size_t kAlignment = 4096, kStaged = 1 << 20;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  void write_staged() {
    if (filled_ == 0) return;
    set_direct(filled_ == kStaged && !refused_);
    write_fully({staged_.get(), std::exchange(filled_, 0)});
  }

  void write_fully(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EINVAL && direct_) {
        refused_ = true;
        set_direct(false);
        continue;
      }
      if (written < 0) fail_system(ErrorKind::kRun, "write", path_);
      bytes = bytes.subspan(size_t(written));
    }
  }

  // Not supported by every file system: those return EINVAL here or at the first write.
  void set_direct(bool direct) {
    if (direct == direct_) return;
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    refused_ |= flags < 0 || ::fcntl(fd_.get(), F_SETFL, wanted) != 0;
    direct_ = direct && !refused_;
  }

  FileDescriptor fd_;
  std::string path_;
  std::unique_ptr<std::byte[], Free> staged_;  // null: data is written at once
  size_t filled_ = 0;                          // bytes of staged_ not yet written
  bool direct_ = false;                        // the descriptor has O_DIRECT
  bool refused_ = false;
};

// The descriptor of this process that a path names, as /dev/stdout; -1: none.
int named_descriptor(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string folder : {"/dev/fd/", "/proc/self/fd/"})
    if (path.starts_with(folder))
      return parsed_number<int>(path.substr(folder.size())).value_or(-1);
  return -1;
}

class PosixEnv : public Env {
 public:
  std::unique_ptr<ReadableFile> open_readable(const std::string& path) override {
    FileDescriptor fd(::open(path.c_str(), kReading));
    const uint64_t size = size_of(fd, path);
    return std::make_unique<PosixReadableFile>(fd.release(), size, path);
  }
  // Allocates nothing itself.
  void read_into(const std::string& path, std::vector<std::byte>& out) override {
    const FileDescriptor fd(::open(path.c_str(), kReading));
    const uint64_t size = size_of(fd, path);
    require_memory(size, path);
    out.resize(size);
    read_fully(fd.get(), 0, out, path);
  }
  std::unique_ptr<WritableFile> open_writable(const std::string& path) override {
    return open_for_writing(path, O_TRUNC);
  }
  std::unique_ptr<WritableFile> open_appendable(const std::string& path) override {
    return open_for_writing(path, O_APPEND);
  }
  bool exists(const std::string& path) override {
    return ::access(path.c_str(), F_OK) == 0 || not_there(path);
  }
  bool is_directory(const std::string& path) override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 ? S_ISDIR(info.st_mode) : not_there(path);
  }
  std::vector<FileInfo> list(const std::string& path) override;
  void make_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail_system(ErrorKind::kRun, "create folder", path, error.value());
  }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail_system(ErrorKind::kRun, "rename " + from, to);
  }
  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      fail_system(ErrorKind::kRun, "remove", path);
  }
  void remove_tree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail_system(ErrorKind::kRun, "remove folder", path, error.value());
  }
  // A file system that does not count its blocks reports 0 of them.
  uint64_t free_bytes(const std::string& folder) override {
    struct statvfs info;
    if (::statvfs(folder.c_str(), &info) != 0) fail_system(ErrorKind::kRun, "examine", folder);
    if (info.f_blocks == 0) return UINT64_MAX;
    return uint64_t{info.f_bavail} * info.f_frsize;
  }
  // Some file systems do not sync folders, and one that may only be written cannot be opened.
  void sync_directory(const std::string& path) override {
    const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() >= 0 ? ::fsync(fd.get()) == 0 : errno == EACCES) return;
    if (errno != EINVAL && errno != ENOTSUP && errno != EBADF)
      fail_system(ErrorKind::kRun, "sync folder", path);
  }
  std::unique_ptr<FileLock> lock(const std::string& path) override { return lock_file(path); }
  int64_t now_ns() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }
  void sleep_ns(int64_t duration) override {
    timespec left{time_t(duration / 1'000'000'000), long(duration % 1'000'000'000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }

 private:
  // With O_NONBLOCK opening a pipe does not block; it has no effect on regular files.
  static constexpr int kReading = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

  // Size of an open file; fails if it could not be opened.
  static uint64_t size_of(const FileDescriptor& fd, const std::string& path) {
    struct stat info;
    if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) fail_reading("open", path);
    if (S_ISDIR(info.st_mode)) fail_system(ErrorKind::kData, "open", path, EISDIR);
    if (!S_ISREG(info.st_mode))
      fail(ErrorKind::kData, "not a regular file", path, "Copy its contents to one");
    return uint64_t(info.st_size);
  }
  // A descriptor is continued as it is: opened again, a file would have another position, and what
  // is printed later would overwrite it; a socket cannot be opened.
  static std::unique_ptr<WritableFile> open_for_writing(const std::string& path, int flag) {
    const int own = flag == O_APPEND ? named_descriptor(path) : -1;
    const int fd = own >= 0 ? ::fcntl(own, F_DUPFD_CLOEXEC, 0)
                            : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flag, 0644);
    if (fd < 0) fail_system(ErrorKind::kRun, "create", path);
    return std::make_unique<PosixWritableFile>(fd, path);
  }
};

std::vector<FileInfo> PosixEnv::list(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) fail_reading("open folder", path);
  std::vector<FileInfo> entries;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    // Only links and file systems that do not report types need a stat call.
    const bool is_dir = entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN
                            ? is_directory(path + "/" + name)
                            : entry->d_type == DT_DIR;
    entries.push_back({name, is_dir});
  }
  if (errno != 0) fail_reading("list folder", path);
  std::ranges::sort(entries, {}, &FileInfo::name);
  return entries;
}

}  // namespace

ErrorKind kind_of_failed_read(int error) {
  constexpr int kNotOfTheFile[] = {EMFILE,      ENFILE,    ENOMEM,      ENODEV,    ESTALE,
                                   ETIMEDOUT,   ENOTCONN,  ESHUTDOWN,   EHOSTDOWN, EHOSTUNREACH,
                                   ENETUNREACH, EREMOTEIO, ECONNABORTED};
  return std::ranges::count(kNotOfTheFile, error) > 0 ? ErrorKind::kRun : ErrorKind::kData;
}

void fail_system(ErrorKind kind, const std::string& action, const std::string& path, int error) {
  fail(kind, "cannot " + action + ": " + std::strerror(error), path, remedy_for(error));
}

Env& Env::posix() {
  static PosixEnv env;
  return env;
}

}  // namespace saturate
