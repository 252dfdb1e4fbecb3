// Bounds-checked reading, and writing, of little-endian fields in the project's formats.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/text.h"

namespace saturate {

// Fields are copied in memory order.
static_assert(std::endian::native == std::endian::little);

// Reads fields in sequence. Past the end they are 0 or empty, and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  std::span<const std::byte> take(size_t count) {
    if (count > left_.size()) {
      ok_ = false;
      left_ = {};
      return {};
    }
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  template <std::unsigned_integral T>
  T number() {
    T value = 0;
    const auto bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text(size_t length) { return as_text(take(length)); }
  void skip(size_t count) { take(count); }

  bool ok() const { return ok_; }
  size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> left_;
  bool ok_ = true;
};

inline void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const size_t at = out.size();
  out.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}

template <std::unsigned_integral T>
void put_number(std::vector<std::byte>& out, T value) {
  put_bytes(out, std::as_bytes(std::span(&value, 1)));
}

inline void put_text(std::vector<std::byte>& out, std::string_view text) {
  put_bytes(out, std::as_bytes(std::span(text)));
}

// A length (uint32) and the bytes.
inline void put_sized(std::vector<std::byte>& out, std::string_view text) {
  put_number(out, uint32_t(text.size()));
  put_text(out, text);
}

inline std::string take_sized(ByteReader& reader) {
  return std::string(reader.text(reader.number<uint32_t>()));
}

inline void put_classes(std::vector<std::byte>& out, std::span<const std::string> classes) {
  for (const std::string& name : classes) put_sized(out, name);
}

inline std::vector<std::string> take_classes(ByteReader& reader, uint32_t count) {
  std::vector<std::string> classes;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) classes.push_back(take_sized(reader));
  return classes;
}

}  // namespace saturate
