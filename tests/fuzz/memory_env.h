// Files in memory, for parsers that open theirs through an Env. Nothing can be written.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate::testing {

class MemoryFile : public ReadableFile {
 public:
  // `bytes` must outlive this.
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    // A real file fails here with an Error; a correct parser checks before.
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      throw std::logic_error("read past the end");
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

class MemoryEnv : public Env {
 public:
  // By path: no others can be opened.
  std::map<std::string, std::string> files;

  std::unique_ptr<ReadableFile> open_readable(const std::string& path) override {
    const auto found = files.find(path);
    if (found == files.end()) fail(ErrorKind::kData, "no such file", path, "Mend the path");
    return std::make_unique<MemoryFile>(std::as_bytes(std::span(found->second)));
  }
  bool exists(const std::string& path) override { return files.contains(path); }
  bool is_directory(const std::string&) override { return false; }
  std::unique_ptr<WritableFile> open_writable(const std::string&) override { refuse(); }
  std::unique_ptr<WritableFile> open_appendable(const std::string&) override { refuse(); }
  std::vector<FileInfo> list(const std::string&) override { refuse(); }
  void make_directories(const std::string&) override { refuse(); }
  void rename(const std::string&, const std::string&) override { refuse(); }
  void remove(const std::string&) override { refuse(); }
  void remove_tree(const std::string&) override { refuse(); }
  void sync_directory(const std::string&) override { refuse(); }
  std::unique_ptr<FileLock> lock(const std::string&) override { refuse(); }
  int64_t now_ns() override { refuse(); }
  void sleep_ns(int64_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a parser only opens files"); }
};

}  // namespace saturate::testing
