#include "data/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/checksum.h"
#include "base/files.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

// Removes NAME.tmp-PID-HOST, a file or a folder, if this is the host, or the container, and has no
// such process.
void remove_leftovers(Env& env, const std::string& folder, const std::string& prefix) {
  const std::string host = host_ending();
  for (const FileInfo& info : env.list(folder)) {
    if (!info.name.starts_with(prefix) || !info.name.ends_with(host)) continue;
    const std::string digits =
        info.name.substr(prefix.size(), info.name.size() - prefix.size() - host.size());
    if (!parsed_number<pid_t>(digits) || !begins_with_ended_process(digits)) continue;
    if (info.is_directory)
      env.remove_tree(folder + "/" + info.name);
    else
      env.remove(folder + "/" + info.name);
  }
}

void refuse_existing(Env& env, const std::string& path) {
  if (env.exists(path))
    fail(ErrorKind::kUsage, "file exists already", path, "Choose a new one with --out");
}

[[noreturn]] void refuse_folder(const std::string& path) {
  fail(ErrorKind::kUsage, "folder is not empty", path, "Choose a new one with --out");
}

// Whether a folder is there; refuses anything else that is.
bool is_folder(Env& env, const std::string& path) {
  if (!env.exists(path)) return false;
  if (!env.is_directory(path)) refuse_folder(path);
  return true;
}

std::string claim_temporary(Env& env, const std::string& path, bool replaces) {
  if (!replaces) refuse_existing(env, path);
  const std::string folder = parent_folder(path);
  env.make_directories(folder);
  const std::string prefix = path + ".tmp-";
  remove_leftovers(env, folder, prefix.substr(prefix.rfind('/') + 1));
  return prefix + std::to_string(::getpid()) + host_ending();
}

}  // namespace

std::string host_ending() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::error_code none;  // without /proc the host's name must do
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", none);
  return fmt::format("-{:08x}", uint32_t(hash_text(processes.string(), hash_text(host))));
}

TemporaryName::TemporaryName(Env& env, std::string path, bool replaces)
    : env_(env),
      path_(std::move(path)),
      replaces_(replaces),
      temporary_(claim_temporary(env, path_, replaces)) {}

TemporaryName::~TemporaryName() {
  if (committed_) return;
  try {
    env_.remove_tree(temporary_);
  } catch (...) {
    // The first failure is the one worth reporting.
  }
}

void TemporaryName::commit() {
  if (!replaces_) refuse_existing(env_, path_);  // made meanwhile by another process
  env_.rename(temporary_, path_);
  env_.sync_directory(parent_folder(path_));
  committed_ = true;
}

AtomicFile::AtomicFile(Env& env, const std::string& path, Existing existing) {
  if (!is_store_url(path)) temporary_.emplace(env, path, existing == Existing::kReplace);
  file_ = env.open_writable(temporary_ ? temporary_->get() : path);
  buffer_.reserve(kBufferBytes);
}

void AtomicFile::flush() {
  if (!buffer_.empty()) file_->append(buffer_);
  buffer_.clear();
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes)
    file_->append(bytes);
  else
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  size_ += bytes.size();
}

void AtomicFile::align(uint64_t alignment) {
  const uint64_t rest = size_ % alignment;
  if (rest != 0) append(std::vector<std::byte>(alignment - rest));
}

void AtomicFile::commit() {
  flush();
  file_->sync();
  file_->close();
  if (temporary_) temporary_->commit();
}

AtomicFolder::AtomicFolder(Env& env, std::string path)
    : env_(env),
      path_(without_end_slashes(std::move(path))),
      exists_(is_folder(env, path_)),
      temporary_(env, exists_ ? path_ + "/.incomplete" : path_, /*replaces=*/true) {
  env_.remove_tree(temporary());  // of an earlier process with this PID
  if (exists_ && !env_.list(path_).empty()) refuse_folder(path_);
  env_.make_directories(temporary());
}

void AtomicFolder::commit() {
  if (!exists_) return temporary_.commit();
  for (const FileInfo& info : env_.list(temporary()))
    env_.rename(temporary() + "/" + info.name, path_ + "/" + info.name);
  env_.remove_tree(temporary());
  env_.sync_directory(path_);
}

}  // namespace saturate
