// The directory of a zip archive (APPNOTE.TXT 6.3, with its 64-bit extensions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

struct ZipMember {
  std::string name;
  bool is_deflated = false;    // else stored
  uint64_t stored = 0;         // bytes in the archive
  uint64_t size = 0;           // bytes of the member
  uint32_t crc = 0;            // of the member
  uint64_t header_offset = 0;  // of its local header
};

// Fails with kData naming `path`: not a zip archive, truncated, encrypted, or compressed otherwise.
std::vector<ZipMember> read_zip_directory(const ReadableFile& file, const std::string& path);

// The position of the member's bytes, all of which are in the file.
uint64_t offset_of(const ZipMember& member, const ReadableFile& file, const std::string& path);

// The member's decompressed bytes. Fails with kData if they are damaged.
std::vector<std::byte> read_member(const ZipMember& member, const ReadableFile& file,
                                   const std::string& path);

}  // namespace saturate
