#include "run/made_folder.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "saturate/data/error.h"

namespace saturate {

std::string without_missing(const std::string& path) {
  if (std::ranges::count(std::filesystem::path(path), "..") == 0) return path;
  std::error_code failed;
  const auto resolved = std::filesystem::weakly_canonical(path, failed);
  return failed ? path : resolved.string();
}

namespace {

// A link that leads nowhere counts as missing, and would be removed as what this has made.
bool is_missing(Env& env, const std::filesystem::path& path) {
  if (env.exists(path)) return false;
  if (is_link(path))
    fail(ErrorKind::kRun, "the symbolic link leads nowhere", path,
         "Mount the disk that it leads to, or remove the link");
  return true;
}

}  // namespace

MadeFolder::MadeFolder(Env& env, const std::string& path, std::vector<std::filesystem::path> made)
    : env_(env), lock_(path + kFolderLock), folders_(std::move(made)) {
  for (const std::string& inner : {lock_, path + kLauncherNote, path + "/checkpoints"})
    if (is_missing(env, inner)) inner_.emplace_back(inner);
  for (std::filesystem::path at = path; !at.empty() && is_missing(env, at); at = at.parent_path())
    folders_.push_back(at);
  try {
    env.make_directories(path);
  } catch (...) {
    remove(folders_);
    throw;
  }
}

MadeFolder::~MadeFolder() {
  if (inner_.empty() && folders_.empty()) return;
  try {
    auto lock = env_.lock(lock_);
    remove(inner_);
    lock.reset();  // NFS keeps a file that is open, and with it the folder
    remove(folders_);
  } catch (const std::exception&) {
    // In use, or gone already.
  }
}

void MadeFolder::remove(const std::vector<std::filesystem::path>& paths) {
  std::error_code ignored;
  for (const auto& path : paths) std::filesystem::remove(path, ignored);
}

void MadeFolder::keep() {
  inner_.clear();
  folders_.clear();
}

}  // namespace saturate
