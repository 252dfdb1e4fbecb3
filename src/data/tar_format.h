// The tar format: POSIX.1-1988 ustar, POSIX.1-2001 pax headers ("pax Interchange Format" in the
// standard's pax page), and GNU tar's long names and base-256 numbers (GNU tar manual, "Basic Tar
// Format"). Everything is a multiple of 512-byte blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

constexpr uint64_t kTarBlock = 512;

inline uint64_t tar_padded(uint64_t bytes) {
  return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
}

// One raw header block.
struct TarHeader {
  char type = '0';
  uint64_t size = 0;  // bytes of the payload that follows
  std::string name;   // prefix joined; up to 256 bytes
  // Whether a block follows that has more of the map of a GNU sparse file; `size` excludes it.
  bool map_continues = false;
};

// Whether the block has the checksum of a header.
bool is_tar_header(std::span<const std::byte, kTarBlock> block);

// Fails with kData naming `path` and `offset` if the block is not a valid header.
TarHeader parse_tar_header(std::span<const std::byte, kTarBlock> block, const std::string& path,
                           uint64_t offset);

// Fields that a pax header overrides in the next member.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;  // GNU.sparse.*: the payload is not the file
};
PaxFields parse_pax(std::string_view records, const std::string& path, uint64_t offset);

// A regular file of an archive.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  // of the payload in the archive, bytes
  uint64_t size = 0;    // bytes
  char type = '0';  // '0' regular, '1' and '2' links, 'S' sparse; folders and others are skipped
  int archive = 0;  // index of the concatenated archive in the file
};

// Lists all files and links, in archive order. The archive must have its end marker (a block of
// zeros): a missing one is an error, wherever the file was cut. After the marker another archive
// may follow, as with cat, and is read too (like tar -i); zeros may follow, and anything else is an
// error.
class TarScanner {
 public:
  TarScanner(Env& env, const std::string& path) : TarScanner(env.open_readable(path), path) {}
  // `path`: for messages.
  TarScanner(std::unique_ptr<ReadableFile> file, const std::string& path);

  const ReadableFile& file() const { return *file_; }
  std::unique_ptr<ReadableFile> release() { return std::move(file_); }

  // The next file or link; false at the end of the file.
  bool next(TarMember& out);
  // The payload of a member of up to 1 MiB; empty if larger.
  std::optional<std::string> text(const TarMember& member);
  // The payload of the member that next() returned, if it has been read with the headers; else
  // empty. Valid until the next call.
  std::span<const std::byte> bytes_read(const TarMember& member) const;

 private:
  // Bytes between two headers up to which reading them costs less than another read: more for a
  // store whose bytes come sooner than a further reply would.
  uint64_t near() const;
  std::span<const std::byte, kTarBlock> block_at(uint64_t offset);
  std::string text_at(uint64_t offset, uint64_t size);
  bool read_next(TarMember& out);
  void skip_zeros();
  bool skip_end_marker();
  [[noreturn]] void fail_behind(uint64_t marker_at) const;
  uint64_t behind_sparse_map(uint64_t offset);
  void check_payload(uint64_t offset, uint64_t size) const;
  [[noreturn]] void fail_truncated(uint64_t offset) const;
  void refuse_compressed();

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  uint64_t position_ = 0;          // of the next header
  uint64_t last_block_ = 0;        // offset of the last block that was looked at
  int archives_ = 0;               // end markers seen
  std::vector<std::byte> window_;  // read ahead from window_start_
  uint64_t window_start_ = 0;
};

// The ustar header of a regular file. Fails with kUsage if the name does not fit: at most 100 bytes
// after a '/' with at most 155 bytes before it.
std::vector<std::byte> make_tar_header(const std::string& name, uint64_t size);

}  // namespace saturate
