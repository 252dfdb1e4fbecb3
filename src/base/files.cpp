// Whole-file reading and atomic writing, over any Env.
#include <unistd.h>

#include <filesystem>

#include "base/paths.h"
#include "saturate/data/env.h"

namespace saturate {
void Env::read_into(const std::string& path, std::vector<std::byte>& out) {
  const auto file = open_readable(path);
  out.resize(file->size());
  file->read_at(0, out);
}

std::vector<std::byte> read_file(Env& env, const std::string& path) {
  std::vector<std::byte> bytes;
  env.read_into(path, bytes);
  return bytes;
}

namespace {

namespace fs = std::filesystem;

// A device, a pipe or a socket, which is written to as it is: no file may take its place.
bool is_special(const std::string& path) {
  std::error_code none;
  const fs::file_status status = fs::status(path, none);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

// The file that a symbolic link leads to, which stays a link.
std::string resolved(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::canonical(path, error);
  return error ? path : target.string();
}

void write_in_place(Env& env, const std::string& path,
                    std::span<const std::span<const std::byte>> pieces) {
  const auto file = env.open_writable(path);
  for (const auto& piece : pieces) file->append(piece);
  file->close();
}

}  // namespace

void write_atomically(Env& env, const std::string& asked,
                      std::span<const std::span<const std::byte>> pieces) {
  if (is_special(asked)) return write_in_place(env, asked, pieces);
  const std::string path = resolved(asked);
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  try {
    const auto file = env.open_writable(temporary);
    file->bypass_cache();
    for (const auto& piece : pieces) file->append(piece);
    file->sync();
    file->close();
    env.rename(temporary, path);
    env.sync_directory(parent_folder(path));
  } catch (...) {
    try {
      env.remove(temporary);
    } catch (...) {
      // The first failure is the one worth reporting.
    }
    throw;
  }
}

void write_atomically(Env& env, const std::string& path, const std::string& text) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  write_atomically(env, path, std::span(&piece, 1));
}

}  // namespace saturate
