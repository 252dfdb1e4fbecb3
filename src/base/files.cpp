// Whole-file reading and atomic writing, over any Env.
#include <unistd.h>

#include "base/paths.h"
#include "saturate/env.h"

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

void write_atomically(Env& env, const std::string& path,
                      std::span<const std::span<const std::byte>> pieces) {
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
