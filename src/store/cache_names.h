// Names in the folder of a cache (extent_cache.h), and the room that files take there.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/text.h"
#include "saturate/data/env.h"

namespace saturate {

constexpr std::string_view kProcess = ".process-", kUser = ".user-";   // then a process
constexpr std::string_view kUnfinished = ".new-", kEvicted = ".old-";  // the same, and ".NUMBER"
constexpr std::string_view kLists = "lists";                           // a folder

// Bytes of a folder, and what the bytes of a file are rounded up to.
constexpr uint64_t kCacheBlock = 4096;

// Precedes the bytes in a file.
struct EntryHeader {
  uint32_t magic, crc;  // of the identity, the offset and the bytes
  uint64_t length;
};

// Bytes that a file takes: whole blocks, and its name in its folder.
inline uint64_t room_of(uint64_t size) {
  constexpr uint64_t kName = 128;
  return (size + kCacheBlock - 1) / kCacheBlock * kCacheBlock + kName;
}
inline uint64_t room_of_entry(uint64_t length) {
  return room_of(length + sizeof(EntryHeader));
}

// Where the name of the object begins: after that of its group, if it has one.
inline size_t object_begin(std::string_view identity) {
  const size_t mark = identity.find('\x1f');
  return mark == std::string_view::npos ? 0 : mark + 1;
}

// Objects of a group share a folder: a hash keeps their ranges apart, and the checksum of an entry,
// which covers the identity, notices two of the same hash.
inline uint64_t entry_number(std::string_view identity, uint64_t offset) {
  const size_t begin = object_begin(identity);
  return begin > 0 ? hash_text(identity.substr(begin), kHashStart ^ offset) : offset;
}

inline std::string entry_name(uint64_t number, uint64_t length) {
  return fmt::format("{:x}-{:x}", number, length);
}

// The length from an entry's name.
inline std::optional<uint64_t> entry_length(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !parsed_number<uint64_t>(name.substr(0, dash), 16))
    return std::nullopt;
  return parsed_number<uint64_t>(name.substr(dash + 1), 16);
}

inline uint64_t entry_hash(std::string_view folder, std::string_view name) {
  return hash_text(name, hash_text(folder, kHashStart));
}

// The process in the name of a file or folder that it made; "" in an entry's.
inline std::string process_in(std::string_view name) {
  for (const std::string_view kind : {kProcess, kUser, kUnfinished, kEvicted})
    if (name.starts_with(kind)) return split_text(name.substr(kind.size()), '.')[0];
  return "";
}

inline bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}
inline bool is_object_folder(const FileInfo& info) {
  return info.is_directory && is_hex(info.name, 32);
}
// The file of a list, whose name is a hash.
inline bool is_list_file(const FileInfo& info) {
  return !info.is_directory && is_hex(info.name, 16);
}
// ".new-PID-TIME.NUMBER"
inline bool is_unfinished_file(const FileInfo& info) {
  if (info.is_directory || !info.name.starts_with(kUnfinished)) return false;
  const std::string process = process_in(info.name);
  const size_t dash = process.find('-'), end = kUnfinished.size() + process.size() + 1;
  return dash != std::string::npos && parsed_number<uint64_t>(process.substr(0, dash)) &&
         parsed_number<uint64_t>(process.substr(dash + 1), 16) && end < info.name.size() &&
         parsed_number<uint64_t>(info.name.substr(end));
}

// Whether a folder holds only what caches write into that of an object; else it is not evicted.
inline bool is_own(const std::vector<FileInfo>& entries) {
  return std::ranges::all_of(entries, [](const FileInfo& entry) {
    return is_unfinished_file(entry) ||
           (!entry.is_directory && (entry.name.starts_with(kUser) || entry_length(entry.name)));
  });
}

// Bytes that an object's folder takes.
inline uint64_t room_of_object(const std::vector<FileInfo>& entries) {
  uint64_t room = kCacheBlock;
  for (const FileInfo& entry : entries)
    if (const auto length = entry_length(entry.name)) room += room_of_entry(*length);
  return room;
}

}  // namespace saturate
