// SHA-256 (FIPS 180-4), which S3 wants of a request's body.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace saturate {

// In lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

// A short one, for ObjectVersion::digest.
inline std::string version_digest(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text))).substr(0, 16);
}

}  // namespace saturate
