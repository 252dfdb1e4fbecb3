// Paths and locks of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "saturate/data/env.h"

namespace saturate {

// "." for a path without a slash.
inline std::string parent_folder(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The whole file as text.
inline std::string text_of_file(Env& env, const std::string& path) {
  return std::string(as_text(read_file(env, path)));
}

// The lines of a text file that may be larger than the memory. The constructor fails as
// Env::open_readable() does. Not for concurrent use.
class LineReader {
 public:
  LineReader(Env& env, const std::string& path) : file_(env.open_readable(path)) {}
  // As std::getline(): false at the end. Gives about the first 64 MiB of a longer line. Fails as
  // ReadableFile::read_at() does.
  bool next(std::string& line);
  // Whether the latest line ended with the file, without a newline.
  bool is_cut() const { return is_cut_; }
  uint64_t bytes() const { return file_->size(); }  // of the file

 private:
  const std::unique_ptr<ReadableFile> file_;
  uint64_t read_ = 0;  // bytes
  std::string block_;  // the last ones
  size_t at_ = 0;      // where the next line begins in them
  bool is_cut_ = false;
};

// Fails with kData if so many bytes of a file do not fit in memory, as those of a sparse file may
// not. `what` begins the message.
void require_memory(uint64_t bytes, const std::string& path, const char* what = "the file has");

// A folder's path without slashes at its end.
inline std::string without_end_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Whether the path is a symbolic link, to whatever it leads.
bool is_link(const std::string& path);

// The path that symbolic links lead to, which stay links; the file may not exist yet.
std::string link_target(std::string path);

// Removes a temporary file after a more important failure; ignores errors.
void discard(Env& env, const std::string& temporary);

// Whether `text` begins with the number of a process that has ended, as in a temporary file's name.
bool begins_with_ended_process(std::string_view text);

struct TextFile {
  std::string path, text;
};

// Fails if write_atomically() could not write the file: with kUsage if it is a folder, else as that
// does. For a command that writes at its end; leaves the file as it is.
void require_writable(Env& env, const std::string& path);

using FileWriter = std::function<void(WritableFile&)>;

// As write_atomically() above, for contents that may not fit in memory: `write` appends them.
void write_atomically(Env& env, const std::string& path, const FileWriter& write);

// As write_atomically() of each, in this order, but replaces none unless all could be written.
void replace_together(Env& env, const std::vector<TextFile>& files);

// As write_atomically(), but does not wait until the bytes have reached the disk: if the system
// crashes soon, the file may be empty.
void write_unsynced(Env& env, const std::string& path, std::span<const std::byte> bytes);

// Cuts a file to its first `size` bytes.
void truncate_file(const std::string& path, uint64_t size);

// Whether any process holds Env::lock() of this file. Writes nothing and needs only read access; a
// file that is missing or unreadable counts as free. A process that locks the file at this moment
// waits for the check and is not refused.
bool is_locked(const std::string& path);

// The recipes or ladders that come with the program (`folder`: "recipes", "ladders"), as sorted
// paths: of the installation or checkout to which the running executable belongs. Empty elsewhere.
std::vector<std::string> shipped_files(Env& env, const std::string& folder);

// The path of a file that comes with the program in the same way ("tools/x.py"); "" if there is
// none.
std::string shipped_file(Env& env, const std::string& name);

// The path of the shipped file that `given` names ("demo"), if no file has that name; else `given`.
std::string file_or_shipped(Env& env, const std::string& folder, const std::string& given);

}  // namespace saturate
