// SHA-256 (FIPS 180-4), which S3 wants of a request's body.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace saturate {

// In lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace saturate
