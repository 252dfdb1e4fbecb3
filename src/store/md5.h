// MD5 (RFC 1321), which stores use as the ETag of an uploaded part. Not a protection against
// forgery.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace saturate {

std::array<std::byte, 16> md5(std::span<const std::byte> bytes);
// In lower-case hexadecimal digits.
std::string md5_hex(std::span<const std::byte> bytes);

}  // namespace saturate
