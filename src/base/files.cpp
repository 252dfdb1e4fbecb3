// Whole-file reading and atomic writing, over any Env.
#include "base/files.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {

void require_memory(uint64_t bytes, const std::string& path, const char* what) {
  static const uint64_t memory =
      uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  if (bytes <= memory) return;
  fail(ErrorKind::kData,
       fmt::format("{} {:.1f} GB, and this machine has {:.1f} GB of memory", what,
                   double(bytes) * 1e-9, double(memory) * 1e-9),
       path, "Remove it, or use a machine with more memory");
}

void Env::read_into(const std::string& path, std::vector<std::byte>& out) {
  const auto file = open_readable(path);
  require_memory(file->size(), path);
  out.resize(file->size());
  file->read_at(0, out);
}

std::vector<std::byte> read_file(Env& env, const std::string& path) {
  std::vector<std::byte> bytes;
  env.read_into(path, bytes);
  return bytes;
}

bool LineReader::next(std::string& line) {
  constexpr uint64_t kBlock = 1 << 20, kLongestLine = 64 << 20;
  line.clear();
  while (true) {
    const size_t end = block_.find('\n', at_);
    if (line.size() < kLongestLine) line.append(block_, at_, end - at_);
    is_cut_ = end == std::string::npos;
    at_ = is_cut_ ? block_.size() : end + 1;
    if (!is_cut_) return true;
    if (read_ == file_->size()) return !line.empty();
    block_.resize(size_t(std::min(kBlock, file_->size() - read_)));
    file_->read_at(read_, std::as_writable_bytes(std::span(block_)));
    read_ += block_.size();
    at_ = 0;
  }
}

void discard(Env& env, const std::string& temporary) {
  try {
    env.remove(temporary);
  } catch (...) {
    // The first failure is the one worth reporting.
  }
}

bool begins_with_ended_process(std::string_view text) {
  pid_t process = 0;
  std::from_chars(text.data(), text.data() + text.size(), process);
  return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

namespace fs = std::filesystem;

bool is_link(const std::string& path) {
  std::error_code none;
  return fs::is_symlink(fs::symlink_status(path, none));
}

namespace {

// The system's link to what a process has open (/dev/stdout). /dev/shm has files as anywhere.
bool is_descriptor(const std::string& path) {
  return is_link(path) && (path.starts_with("/proc/") ||
                           (path.starts_with("/dev/") && !path.starts_with("/dev/shm/")));
}

// Paths that a rename must not replace: what a process has open, a device, a pipe or a socket.
bool is_special(const std::string& path) {
  std::error_code none;
  const fs::file_status status = fs::status(path, none);
  return is_descriptor(path) ||
         (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status));
}

}  // namespace

std::string link_target(std::string path) {
  constexpr int kMostLinks = 40;  // Linux follows no more
  std::error_code none;
  for (int i = 0; i < kMostLinks && is_link(path) && !is_descriptor(path); ++i)
    path = (fs::path(path).parent_path() / fs::read_symlink(path, none)).string();
  return path;
}

namespace {

// Writes after everything printed so far. stdout may be a file: its contents are kept.
void write_in_place(Env& env, const std::string& path, const FileWriter& write) {
  std::fflush(stdout);
  const auto file = env.open_appendable(path);
  write(*file);
  file->close();
}

FileWriter writer_of(std::span<const std::byte> bytes) {
  return [bytes](WritableFile& file) { file.append(bytes); };
}

// A file's new contents, under a temporary name until commit(); removed again without it. Those of
// a special path are written in place by commit().
class NewContents {
 public:
  NewContents(Env& env, const std::string& path, FileWriter write, bool is_synced = true)
      : env_(env), path_(link_target(path)), write_(std::move(write)), is_synced_(is_synced) {
    if (is_special(path_)) return;
    temporary_ = path_ + ".tmp-" + std::to_string(::getpid());
    try {
      const auto file = env_.open_writable(temporary_);
      if (is_synced_) file->bypass_cache();
      write_(*file);
      if (is_synced_) file->sync();
      file->close();
    } catch (const Error& error) {
      discard(env_, temporary_);
      if (error.where() != temporary_) throw;
      fail(error.kind(), error.reason(), path_, error.remedy(), error.thrown_at());
    } catch (...) {
      discard(env_, temporary_);
      throw;
    }
  }
  NewContents(const NewContents&) = delete;
  NewContents& operator=(const NewContents&) = delete;
  ~NewContents() {
    if (!temporary_.empty()) discard(env_, temporary_);
  }

  void commit() {
    if (temporary_.empty()) return write_in_place(env_, path_, write_);
    env_.rename(temporary_, path_);
    temporary_.clear();
    if (is_synced_) env_.sync_directory(parent_folder(path_));
  }

 private:
  Env& env_;
  const std::string path_;
  const FileWriter write_;
  const bool is_synced_;
  std::string temporary_;  // empty: none, or renamed
};

}  // namespace

void write_atomically(Env& env, const std::string& path,
                      std::span<const std::span<const std::byte>> pieces) {
  write_atomically(env, path, [pieces](WritableFile& file) {
    for (const auto& piece : pieces) file.append(piece);
  });
}

void write_atomically(Env& env, const std::string& path, const FileWriter& write) {
  NewContents(env, path, write).commit();
}

void write_unsynced(Env& env, const std::string& path, std::span<const std::byte> bytes) {
  NewContents(env, path, writer_of(bytes), /*is_synced=*/false).commit();
}

void truncate_file(const std::string& path, uint64_t size) {
  std::error_code error;
  fs::resize_file(path, size, error);
  if (error)
    fail(ErrorKind::kRun, "cannot shorten the file: " + error.message(), path,
         "Check its permissions and the disk");
}

void require_writable(Env& env, const std::string& path) {
  if (env.is_directory(path))
    fail(ErrorKind::kUsage, "a folder cannot be replaced by a file", path, "Name a file");
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !env.exists(folder))
    fail(ErrorKind::kRun, "the folder of this file does not exist", path,
         "Create it, or name another path");
  const NewContents removed_again(env, path, writer_of({}));
}

void replace_together(Env& env, const std::vector<TextFile>& files) {
  std::vector<std::unique_ptr<NewContents>> all;
  for (const auto& [path, text] : files) {
    if (env.is_directory(path))
      fail(ErrorKind::kRun, "a folder has the name of a file", path, "Rename the folder");
    all.push_back(
        std::make_unique<NewContents>(env, path, writer_of(std::as_bytes(std::span(text)))));
  }
  for (const auto& contents : all) contents->commit();
}

void write_atomically(Env& env, const std::string& path, const std::string& text) {
  write_atomically(env, path, writer_of(std::as_bytes(std::span(text))));
}

namespace {

// In an installation, and in a checkout.
std::vector<fs::path> shipped_roots() {
  std::error_code unknown;
  const fs::path root = fs::read_symlink("/proc/self/exe", unknown).parent_path().parent_path();
  if (root.empty()) return {};
  return {root / "share/saturate", root};
}

}  // namespace

std::string shipped_file(Env& env, const std::string& name) {
  for (const fs::path& root : shipped_roots())
    if (env.exists(root / name)) return root / name;
  return "";
}

std::vector<std::string> shipped_files(Env& env, const std::string& folder) {
  std::vector<std::string> paths;
  for (const fs::path& root : shipped_roots()) {
    const fs::path place = root / folder;
    if (!env.is_directory(place)) continue;
    for (const FileInfo& info : env.list(place))
      if (info.name.ends_with(".toml")) paths.push_back(place / info.name);
    if (!paths.empty()) break;
  }
  std::ranges::sort(paths);
  return paths;
}

std::string file_or_shipped(Env& env, const std::string& folder, const std::string& given) {
  if (given.find_first_of("/.") != std::string::npos || env.exists(given)) return given;
  for (const std::string& path : shipped_files(env, folder))
    if (fs::path(path).stem() == given) return path;
  return given;
}

}  // namespace saturate
