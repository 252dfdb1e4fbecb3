// Shards with damage that their checksums do not show.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "data/bytes.h"

namespace saturate::testing {

template <class T>
void put(std::string& text, size_t at, T value) {
  std::memcpy(text.data() + at, &value, sizeof value);
}

template <class T>
T get(const std::string& text, size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

inline uint32_t crc_of(const std::string& text, size_t at, size_t size) {
  return checksum_of(std::as_bytes(std::span(text)).subspan(at, size));
}

// A shard whose parts can be changed; all checksums are corrected afterwards.
struct Forged {
  std::string text;
  size_t trailer() const { return text.size() - 64; }
  size_t index() const { return get<uint64_t>(text, trailer() + 16); }
  size_t record(size_t i) const { return index() + i * 40; }

  void fix_checksums() {
    put(text, trailer() + 44, crc_of(text, index(), trailer() - index()));
    fix_block_checksums();
  }
  void fix_block_checksums() {
    put(text, trailer() + 60, crc_of(text, trailer(), 60));
    put(text, 60, crc_of(text, 0, 60));
  }
};

}  // namespace saturate::testing
